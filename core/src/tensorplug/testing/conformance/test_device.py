"""The kit on the device that `--device` names."""

from collections.abc import Iterator

import pytest

import tensorplug
from tensorplug.backend import Backend
from tensorplug.device import Device
from tensorplug.testing.kit import DeviceTests


class TestDevice(DeviceTests):
    """Every contract, on one device of this machine."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, backend: Backend) -> Device:
        return backend.device

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, request: pytest.FixtureRequest) -> Iterator[Backend]:
        spec = request.config.getoption("device")
        if not spec:
            pytest.fail(
                "name a device: pytest --pyargs tensorplug.testing --device cpu", pytrace=False
            )
        with tensorplug.open(spec) as backend:
            yield backend
