"""A scheduler over two fake devices."""

from typing import Any

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug_testing.null import NullDevice


class Rig:
    """A fast device with memory of its own, and a host device behind it."""

    def __init__(self, **gpu: Any) -> None:
        self.gpu = NullDevice("gpu:0", **gpu)
        self.cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.fast: Backend = self.gpu.open()
        self.slow: Backend = self.cpu.open()
        self.scheduler = tp.Scheduler([self.fast, self.slow])

    def close(self) -> None:
        self.scheduler.close(force=True)
        self.gpu.close(force=True)
        self.cpu.close(force=True)
