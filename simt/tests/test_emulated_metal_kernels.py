"""The shared kernels in Metal Shading Language, emulated, compared with the float64 reference.

All their accesses are checked, in three orders of their items. Nothing here ran on a GPU, and
nothing was compiled by Apple's compiler.
"""

from collections.abc import Iterator

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import supported
from tensorplug_emulator.metal import emulated_metal
from tensorplug_emulator.suites.kernels import MetalTextTests
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.lowering import SHARED
from tensorplug_testing.tiers import select

from .emulated import SharedKernelTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with emulated_metal() as device:
        yield device


class TestKernels(SharedKernelTests):
    """The kernels that all GPU plugins share; those of a few ops compute a case at once."""

    step = 8


@pytest.mark.slow
def test_ops_that_metal_can_have_are_those_with_shared_kernels(device):
    ops = {case.op for case in supported(device, select("smoke"))}

    assert len(ops) > 100
    assert ops <= SHARED.keys()


class TestTexts(MetalTextTests):
    """Their texts."""

    steps = {"smoke": 4}
    least = {"smoke": 160, "full": 1000}
