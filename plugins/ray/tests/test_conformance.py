"""The conformance kit on devices behind actors."""

import pytest

import tensorplug as tp
from tensorplug.device import Device
from tensorplug_testing.kit import DeviceTests


class TestCpu(DeviceTests):
    """Every contract of a device, on the cpu backend of an actor."""

    graphs = 40

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, cluster) -> Device:
        (device,) = cluster("cpu?threads=1")
        return device


class TestOpenCL(DeviceTests):
    """Every contract of a device, on the opencl backend of an actor."""

    graphs = 40

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, cluster) -> Device:
        if not any(device.name.startswith("opencl:") for device in tp.devices()):
            pytest.skip("no OpenCL driver is installed here")
        (device,) = cluster("opencl:0")
        return device
