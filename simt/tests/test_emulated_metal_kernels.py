"""The shared kernels in Metal Shading Language, emulated, compared with the float64 reference.

All their accesses are checked, in three orders of their items. Nothing here ran on a GPU, and
nothing was compiled by Apple's compiler.
"""

from collections.abc import Iterator

import pytest

from tensorplug_emulator import missing, spaces
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import emulation_problems, first_cases, launches_of, supported
from tensorplug_emulator.metal import emulated_metal
from tensorplug_emulator.spaces import space_problems
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.metal import APPLE, metal_source
from tensorplug_simt.lowering import SHARED
from tensorplug_testing.tiers import select

from .emulated import KitTests, in_each_order

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with emulated_metal() as device:
        yield device


@in_each_order
def test_kernels_here_and_there_compute_their_first_case(device, order):
    cases = first_cases(device, select("smoke"))[::8]

    assert emulation_problems(device, cases, order) == []


class TestKit(KitTests):
    """The conformance kit."""


@pytest.mark.slow
def test_ops_that_metal_can_have_are_those_with_shared_kernels(device):
    ops = {case.op for case in supported(device, select("smoke"))}

    assert len(ops) > 100
    assert ops <= SHARED.keys()


@pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
@pytest.mark.parametrize(
    ("tier", "step", "count"),
    [
        pytest.param("smoke", 4, 40, marks=pytest.mark.long),
        pytest.param("full", 1, 1000, marks=pytest.mark.slow),
    ],
)
def test_clang_finds_no_wrong_address_space(tier, step, count):
    launches = launches_of(select(tier), APPLE)[::step]

    assert len(launches) > count
    assert [line for each in launches for line in space_problems(metal_source(each))] == []
