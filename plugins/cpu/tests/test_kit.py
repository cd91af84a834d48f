"""The conformance kit on the cpu device: with one case of each op and type by default."""

from collections.abc import Iterator

import pytest

from tensorplug.testing.kit import DeviceTests
from tensorplug_cpu.device import CPUDevice


class TestCPU(DeviceTests):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[CPUDevice]:
        with CPUDevice("cpu:0") as device:
            yield device
