"""Devices of every driver that is installed here."""

from collections.abc import Iterator

import pytest

from tensorplug_opencl import drivers
from tensorplug_opencl.backend import OpenCLBackend
from tensorplug_opencl.device import OpenCLDevice


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a `driver` on every one; none is a skip with its reason."""
    if "driver" in metafunc.fixturenames:
        found = list(drivers.devices())
        nobody = pytest.mark.skip(reason=drivers.missing() or "no OpenCL driver has a device")
        params = found or [pytest.param(None, marks=nobody)]
        names = [driver.platform.name.split()[0] for driver in found] or ["none"]
        metafunc.parametrize("driver", params, ids=names, scope="class")


@pytest.fixture(scope="class")
def device(driver) -> Iterator[OpenCLDevice]:
    """A device of its own for each class of tests, or each test."""
    with OpenCLDevice("opencl:0", driver) as device:
        yield device


@pytest.fixture
def stream(device: OpenCLDevice) -> Iterator[OpenCLBackend]:
    """One stream of the device."""
    with device.open() as stream:
        yield stream
