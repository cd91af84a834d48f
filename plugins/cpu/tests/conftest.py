"""One device and one stream of two threads for all tests of a module."""

from collections.abc import Iterator

import pytest

from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.device import CPUDevice


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice("cpu:0") as device:
        yield device


@pytest.fixture(scope="module")
def backend(device: CPUDevice) -> Iterator[CPUBackend]:
    with device.open(threads=2) as backend:
        assert isinstance(backend, CPUBackend)
        yield backend
