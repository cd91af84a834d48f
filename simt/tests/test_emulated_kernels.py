"""The shared kernels in CUDA C++, emulated, compared with the float64 reference.

All their accesses are checked, in three orders of their items. Nothing here ran on a GPU.
"""

from collections.abc import Iterator

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import emulation_problems, first_cases
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_testing.tiers import select

from .emulated import KitTests, in_each_order

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@in_each_order
def test_each_kernel_computes_its_first_case(device, order):
    cases = first_cases(device, select("smoke"))

    assert len(cases) > 60
    assert emulation_problems(device, cases, order) == []


class TestKit(KitTests):
    """The conformance kit."""
