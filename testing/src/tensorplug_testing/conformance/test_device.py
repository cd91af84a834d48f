"""The kit on the device that `--device` names."""

from collections.abc import Iterator

import pytest

import tensorplug
from tensorplug.device import Backend, Device
from tensorplug.errors import TensorplugError
from tensorplug_testing.kit import DeviceTests

WRONG_USE = int(pytest.ExitCode.USAGE_ERROR)


class TestDevice(DeviceTests):
    """Tests of every contract, on one device of this machine."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, backend: Backend) -> Device:
        return backend.device

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, request: pytest.FixtureRequest) -> Iterator[Backend]:
        spec = request.config.getoption("tensorplug_device", None)
        if not spec:
            pytest.exit(
                "name a device: pytest --pyargs tensorplug_testing --device cpu "
                "(--tensorplug-device where another plugin has an option --device)",
                WRONG_USE,
            )
        try:
            backend = tensorplug.open(spec)
        except TensorplugError as error:
            # Without the device each of the thousands of tests would fail with the same text.
            pytest.exit(f"--device {spec}: {error}", WRONG_USE)
        with backend:
            yield backend
