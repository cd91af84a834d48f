"""An emulated Mac: its GPUs, the work that their queues still have, and faults that were found.

Committed work is done only when something waits for it: code that forgets to wait sees old bytes.
Where Metal's validation layer would stop the process, `Misuse` is raised; what it cannot see, but
a GPU would do wrong, is noted in `faults`.
"""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from Metal._commands import Queue

UNWRITTEN = 0xFF
"""What new memory holds: as floats, these bytes are NaN."""
GUARD = 256
PATTERN = 0xA5
"""What the guards around each allocation hold, which must not be written."""

INTERNAL, PAGE_FAULT, OUT_OF_MEMORY, INVALID_RESOURCE, REMOVED = 1, 3, 8, 9, 11


class Misuse(AssertionError):
    """A call that Metal's validation layer stops the process for."""


def need(met: bool, what: str) -> None:
    """Raise Misuse unless a condition of Metal's is met."""
    if not met:
        raise Misuse(what)


class GpuError(Exception):
    """What ends a command buffer: a code of MTLCommandBufferErrorDomain, and words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class NSError:
    """An error as Cocoa tells it."""

    def __init__(self, domain: str, code: int, text: str) -> None:
        self._domain, self._code, self._text = domain, code, text

    def domain(self) -> str:
        return self._domain

    def code(self) -> int:
        return self._code

    def localizedDescription(self) -> str:
        return self._text


@dataclass
class Gpu:
    """A GPU: what it says of itself, and what is allocated on it."""

    registry_id: int
    name: str = "emulated Apple GPU"
    families: frozenset[int] = frozenset({1007, 1008, 2002, 3003, 5001})
    working_set: int = 1 << 28
    max_buffer: int = 1 << 28
    group_memory: int = 32768
    most_items: int = 1024
    generation: int = 14
    """Of its driver: older ones than 15 lose pipelines that only indirect commands name."""
    allocated: int = 0


@dataclass
class Captures:
    """What the capture manager was asked for."""

    supported: bool = True
    running: Any = None
    made: list[Any] = field(default_factory=list)


class Machine:
    """The GPUs of a process, their queues, and how strictly their work is done."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pools = threading.local()
        self.reset()

    def reset(self, gpus: int = 1) -> None:
        """A new Mac with `gpus` GPUs."""
        self.gpus = [Gpu(0x100000300 + i) for i in range(gpus)]
        self.devices: list[Any] = []
        self.queues: WeakSet[Queue] = WeakSet()
        self.faults: list[str] = []
        self.captures = Captures()
        self.order: str | int = "reverse"
        """How dispatches that no barrier divides are ordered: reverse, forward, or a seed."""
        self.items: Any = 0
        """The emulator's order of items in a group."""
        self.compare_orders = False
        """Run dispatches that no barrier divides in both orders, and note different results."""
        self.fail_next = 0
        """A code with which the next command buffer that has work fails."""
        self.no_buffers = 0
        """How many of the next command buffers are refused: `commandBuffer` returns nil."""
        self.compilations = self.dispatches = self.barriers = self.commits = 0
        self.executions = 0
        """Of indirect command buffers."""
        self.waits = 0

    @property
    def depth(self) -> int:
        """How many pools of this thread are open."""
        return int(getattr(self.pools, "depth", 0))

    def fault(self, what: str) -> None:
        """Note what no check of Metal's stops."""
        if what not in self.faults:
            self.faults.append(what)

    def short_lived(self, what: str) -> None:
        """Note an object that is never released, because Metal has no pool to put it in."""
        if not self.depth:
            self.fault(f"{what} was made outside of an autorelease pool and stays for good")


machine = Machine()
