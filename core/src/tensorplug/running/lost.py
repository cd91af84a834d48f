"""`Lost`: what a scheduler lost with its devices, and the memory that takes its place."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import MultiBuffer
from tensorplug.device.device import Device
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Place, Tensor

Source = Callable[[], Any]
"""Returns the stored bytes of a tensor that never changes, as an array."""
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
        self.streams: list[Backend] = []
        self.spoilt: set[Tensor] = set()
        """Persistent tensors on any device that a hung device may still write."""
        self.moved: dict[Tensor, Place] = {}
        """The new places of persistent tensors whose device was lost."""
        self.buffers: list[MultiBuffer] = []
        """The memory of `moved`."""
        self.sources: dict[Tensor, Source] = {}
        self.states: dict[Tensor, Restore] = {}
        self.owed: dict[Restore, None] = {}
        """Functions that must restore states before anything runs."""

    def place_of(self, tensor: Tensor) -> Place:
        """The place of a persistent tensor now: its storage, or its new place."""
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
        forgotten, self.buffers = self.buffers, []
        return forgotten

    def close(self) -> None:
        """Release the memory of moved tensors."""
        for buffer in self.buffers:
            buffer.close()
        self.buffers = []


def persistent(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The roots of `tensors` that have their own memory, each once."""
    return [t for t in dict.fromkeys(t.root for t in tensors) if t.place is not None]
