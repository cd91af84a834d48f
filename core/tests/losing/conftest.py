"""A scheduler over devices that can be made to fail in the middle of a schedule."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.graph.tensor import Tensor
from tensorplug_testing.null import NullDevice, null_devices

W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
LIMIT = 0.1
"""Seconds after which a device counts as hung."""


class Rig:
    """Two devices with memory of their own and a host device: a chain through all three."""

    def __init__(
        self,
        *,
        on_failure: str = "replan",
        hang_limit: float | None = None,
        pinned: bool = False,
        **options: Any,
    ) -> None:
        """With `pinned` the last stream computes in host memory of the second device."""
        self.one, self.two = null_devices(2, family="gpu", seed=1, host_buffer=pinned, **options)
        self.cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.devices = [self.one, self.two, self.cpu]
        self.streams: list[Backend] = [d.open() for d in self.devices]
        pool = self.two.host_buffer_type if pinned else self.cpu.buffer_type
        assert pool is not None
        self.scheduler = tp.Scheduler(
            self.streams,
            on_failure=on_failure,
            hang_limit=hang_limit,
            buffer_types={self.streams[2]: pool},
        )
        self.x = tp.input("x", (4, 4), tp.F32)

    def weight(self, device: int, name: str = "w") -> Tensor:
        """A weight on a device, with its source."""
        tensor = self.streams[device].place(name, W, usage=tp.WEIGHTS)
        self.scheduler.add_sources({tensor: lambda: W})
        return tensor

    def chain(self) -> Tensor:
        """A product on each of the first two devices, and one that both refuse."""
        first = tp.mul_mat(self.weight(0, "w0"), self.x, name="first")
        second = tp.mul_mat(self.weight(1, "w1"), first, name="second")
        return tp.relu(second, name="last")

    def counting(self, home: int) -> tuple[Tensor, Tensor, Tensor]:
        """A state that grows by what a product on the first device gives."""
        state = self.streams[home].place("state", np.zeros((4, 4), np.float32))
        product = tp.mul_mat(self.weight(0), self.x)
        grown = tp.cpy(state + product, state)
        return state, grown, tp.mul_mat(self.weight(1, "w1"), tp.cont(grown))

    def again(self, name: str) -> NullDevice:
        """Take a new device back in the place of a lost one."""
        device = NullDevice(name)
        self.devices.append(device)
        self.scheduler.take_back(device.open())
        return device

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in self.devices:
            device.close(force=True)


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(Rig(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def hanging(rig: Any) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**options: Any) -> Rig:
        made.append(rig(hang_limit=LIMIT, **options))
        return made[-1]

    yield make
    for each in made:
        for device in each.devices:
            device.release()
