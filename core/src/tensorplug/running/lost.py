"""`Lost`: what a scheduler lost with its devices, and the memory that takes its place."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, runtime_checkable

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType, FileRange, MultiBuffer
from tensorplug.device.device import Device
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor

Source = Callable[[], Any]
"""Returns the stored bytes of a tensor that never changes, as an array."""


@runtime_checkable
class SupportsFileRange(Protocol):
    """A source that may know a file with its bytes: a remote device reads its own copy of it."""

    def range(self) -> FileRange | None: ...


Restore = Callable[[], None]
"""Gives states the values that they had before the run that failed; may run schedules."""


class MemoryLost(Exception):
    """Tensors of `graph` need new memory, or states must be restored, before anything runs."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(f"{graph}: memory of a lost device is missing")
        self.graph = graph


class Lost:
    """Data that the planner reads and only recovery changes; nothing is lost in the beginning."""

    def __init__(self) -> None:
        self.devices: set[Device] = set()
        self.streams: dict[Backend, BufferType] = {}
        """Streams that are out of use, each with the memory in which it computed."""
        self.successors: dict[Backend, Backend] = {}
        """Streams that were taken back, by the lost stream whose place they took."""
        self.spoilt: set[Tensor] = set()
        """Persistent tensors on any device that a hung device may still write."""
        self.moved: dict[Tensor, Place] = {}
        """The new places of persistent tensors whose device was lost."""
        self.buffers: dict[Tensor, MultiBuffer] = {}
        """The memory of `moved`."""
        self.sources: dict[Tensor, Source] = {}
        self.states: dict[Tensor, Restore] = {}
        self.repeats: set[Restore] = set()
        """Functions after which batches in flight are repeated."""
        self.owed: dict[Restore, None] = {}
        """Functions that must restore states before anything runs."""

    def place_of(self, tensor: Tensor) -> Place:
        """The place of a persistent tensor now: its own, or its new place."""
        return Bindings(self.moved).where(tensor)

    def has(self, root: Tensor, failed: Collection[Device] = ()) -> bool:
        """True if the value of a persistent tensor is lost, counting devices in `failed`."""
        device = self.place_of(root).buffer.type.device
        return device in self.devices or device in failed or root in self.spoilt

    def check(self, graph: Graph) -> None:
        """Raise MemoryLost if `graph` reads memory of a lost device."""
        if self.devices and any(self.has(root) for root in persistent(graph.leafs)):
            raise MemoryLost(graph)

    def forget(self) -> object:
        """Drop the memory of moved tensors without closing it, and return it."""
        forgotten, self.buffers = self.buffers, {}
        return forgotten

    def successor(self, stream: Backend) -> Backend | None:
        """The stream that stands for `stream` now, which may be itself; None if it is lost."""
        while stream in self.successors:
            stream = self.successors[stream]
        return None if stream in self.streams else stream

    def release(self) -> None:
        """Release the memory of moved tensors."""
        for buffer in self.buffers.values():
            buffer.close()
        self.buffers = {}


def persistent(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The roots of `tensors` that have their own memory, each once."""
    return [t for t in dict.fromkeys(t.root for t in tensors) if t.place is not None]
