"""The conformance kit on the cpu device: with one case of each op and type by default."""

from collections.abc import Iterator

import pytest

from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.kit import DeviceTests


class TestCPU(DeviceTests):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[CPUDevice]:
        with CPUDevice("cpu:0") as device:
            yield device
