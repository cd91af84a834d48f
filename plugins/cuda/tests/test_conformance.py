"""The conformance kit on the emulated GPU."""

import pytest

from tensorplug.device import Device
from tensorplug_emulator import missing
from tensorplug_testing.standins import StandInTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestEmulated(StandInTests):
    """Every contract of a device, emulated."""

    stand_in = "cupy._machine"
    enumeration = "tensorplug_cuda.enumeration"

    def break_next_op(self, device: Device) -> bool:
        """Make the next launch fail for want of registers, after which a GPU goes on."""
        self.machine().failing = True
        return True
