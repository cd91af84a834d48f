"""`RayDevice`: the device that an actor of a Ray cluster opened."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from tensorplug.device import (
    Backend,
    Buffer,
    BufferType,
    Device,
    DeviceType,
    Group,
    Memory,
    Pattern,
    Refusal,
    Rounding,
    Tensor,
)
from tensorplug.errors import DeviceError, DeviceLost, TensorplugError
from tensorplug_ray.cluster import check_cluster, check_mode, connect, start_actor
from tensorplug_ray.config import Config, DeviceEntry
from tensorplug_ray.identity import check_alike, identity
from tensorplug_ray.link import Link
from tensorplug_ray.memory import RayBuffer, RayBufferType
from tensorplug_ray.patterns import KNOWN
from tensorplug_ray.questions import Questions
from tensorplug_ray.stream import RayBackend

START = 120.0
"""Seconds in which an actor must start and open its device, at the least."""


class RayDevice(Device):
    """A device of another process, of this machine or of another one."""

    backend_class = RayBackend
    remote = True

    def __init__(self, name: str, entry: DeviceEntry, config: Config) -> None:
        """Start the actor, which opens nothing yet: `start_far` and `open_far` come next."""
        super().__init__(name)
        self.models = config.models
        self.entry = entry
        self._config = config
        self.link = Link(self, start_actor(entry))
        self.link.limit = max(config.limit, START) if config.limit else None
        self._asked: Any = self.link.start("identify")
        self.facts: Mapping[str, Any] = {}
        self.node = ""

    def start_far(self) -> None:
        """Wait for the actor, compare versions, and let it open its device.

        Raises DeviceError if the versions are unlike, OptionError if its node asks for no token,
        and DeviceLost.
        """
        ((there, self.node),) = self.link.wait([self._asked])
        check_alike(self.name, identity(), there, self.node)
        check_mode(there["authentication"], self._config)
        self._asked = self.link.start("open", self.entry.open)

    def open_far(self) -> None:
        """Wait until the actor has opened its device. Raises DeviceError."""
        try:
            (self.facts,) = self.link.wait([self._asked])
        except DeviceLost:
            raise
        except TensorplugError as error:
            why = f"{self.name}: {self.node} cannot open {self.entry.open!r}: {error}"
            raise DeviceError(why) from error
        self._asked = None  # a reference is kept in the cluster
        self.link.limit = self._config.limit or None
        self._types = [RayBufferType(self, i, t) for i, t in enumerate(self.facts["types"])]
        self.questions = Questions(self.link.call, self._number)
        self.fusions: Sequence[Pattern] = [KNOWN[name] for name in self.facts["fusions"]]

    def restarted(self) -> "RayDevice":
        """Another device of this name and place, with a new actor; the old actor is ended."""
        self.link.kill()
        (device,) = _opened({self.name: self.entry}, self._config)
        return device

    def _number(self, kind: BufferType) -> int | None:
        if isinstance(kind, RayBufferType) and kind.device is self:
            return kind.index
        return None

    def number(self, buffer: Buffer) -> int | None:
        """The number of a buffer of this device; None for other memory."""
        if isinstance(buffer, RayBuffer) and buffer.link is self.link:
            return buffer.number
        return None

    @property
    def description(self) -> str:
        return f"{self.facts['description']}, as {self.facts['name']} of {self.node} through Ray"

    @property
    def type(self) -> DeviceType:
        return DeviceType(self.facts["type"])

    @property
    def mmap(self) -> bool:
        return False

    def memory(self) -> Memory:
        return Memory(*self.link.call("memory"))

    @property
    def buffer_type(self) -> BufferType:
        return self._types[0]

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return self._types[1:]

    def rounding(self, node: Tensor) -> Rounding:
        return Rounding(self.questions.of_node("rounding", node))

    def _open(self, options: dict[str, Any]) -> Backend:
        return RayBackend(self)

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        return self.questions.refusal(node, source_types)

    def _refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType]
    ) -> Refusal | None:
        return self.questions.refusal(group, source_types)

    def _close(self) -> None:
        self.link.kill()


def devices_of(config: Config) -> list[RayDevice]:
    """Connect, and open the devices of a configuration. Raises OptionError, DeviceError."""
    connect(config)
    return _opened({f"ray:{i}": entry for i, entry in enumerate(config.devices)}, config)


def _opened(entries: Mapping[str, DeviceEntry], config: Config) -> list[RayDevice]:
    """Devices by name, when all are open, at the same time; after an error all are closed."""
    with ExitStack() as started:
        devices = []
        for name, entry in entries.items():
            devices.append(RayDevice(name, entry, config))
            started.callback(devices[-1].close, force=True)
        try:
            for device in devices:
                device.start_far()
        except DeviceLost:
            # A cluster that asks for no token ends actors of a driver that has one.
            with suppress(DeviceError):
                check_cluster(config)
            raise
        for device in devices:
            device.open_far()
        started.pop_all()
    return devices
