"""`StandInTests`: the conformance kit on a device whose driver is a stand-in."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar

import pytest

from tensorplug.device import Device
from tensorplug_testing.kit import DeviceTests


class StandInTests(DeviceTests):
    """Every contract of a device, over a stand-in that must find no fault in how it is used.

    Modules are named and not imported: the same tests may run with the driver that is installed.
    """

    stand_in: ClassVar[str]
    """The module with the stand-in's `machine`, which has `reset()` and `faults`."""
    enumeration: ClassVar[str]
    """The module of the backend with `devices()`, which lists those of the machine."""
    graphs = 100

    @classmethod
    def machine(cls) -> Any:
        """The emulated machine."""
        return import_module(cls.stand_in).machine

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """The devices of the machine."""
        listed: Sequence[Device] = import_module(cls.enumeration).devices()
        return listed

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[Device]:
        """The only device of a new machine."""
        cls.machine().reset()
        (device,) = cls.devices()
        with device:
            yield device
        assert cls.machine().faults == []

    @pytest.fixture
    def spare_device(self, device: Device) -> Device:
        """Another object for the same device."""
        (spare,) = self.devices()
        return spare
