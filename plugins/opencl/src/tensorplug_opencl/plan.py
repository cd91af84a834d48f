"""`OpenCLPlan`: every launch with its arguments set; a run only enqueues."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tensorplug.device import Part
from tensorplug_opencl.memory import OpenCLBuffer
from tensorplug_simt.merging import Placed, joined
from tensorplug_simt.plan import SimtPlan
from tensorplug_simt.program import Grid, Launch

if TYPE_CHECKING:
    from tensorplug_opencl.backend import OpenCLBackend
    from tensorplug_opencl.device import OpenCLDevice


class Ready(NamedTuple):
    """A kernel with its arguments, and its sizes as the driver wants them."""

    kernel: Any
    size: tuple[int, int, int]
    local: tuple[int, int, int]


class OpenCLPlan(SimtPlan):
    """Kernels are made once; another binding sets their arguments."""

    backend: "OpenCLBackend"

    def __init__(self, backend: "OpenCLBackend", bound: Part) -> None:
        self._kernels = Kernels(backend.device)
        super().__init__(backend, bound)

    def _bind(self, launches: Sequence[tuple[Placed, ...]]) -> None:
        self._kernels.give_back()
        self._ready = [bind(self.backend.device, parts, self._kernels) for parts in launches]

    def _close(self) -> None:
        super()._close()
        self._kernels.forget()


class Kernels:
    """The kernel objects of one plan, which its next binding uses again: making one is slow.

    Arguments of launches that are queued already stay what they were.
    """

    def __init__(self, device: "OpenCLDevice") -> None:
        self._make = device.programs.kernel
        self._taken: list[tuple[Hashable, Any]] = []
        self._free: dict[Hashable, list[Any]] = {}

    def take(self, launch: Launch, parts: int) -> Any:
        """A kernel object for `launch`, or for `parts` like it, that no other launch has."""
        key = (*launch.variant, parts)
        waiting = self._free.get(key)
        kernel = waiting.pop() if waiting else self._make(launch, parts)
        self._taken.append((key, kernel))
        return kernel

    def give_back(self) -> None:
        """Let all kernel objects be taken again."""
        taken, self._taken = self._taken, []
        for key, kernel in taken:
            self._free.setdefault(key, []).append(kernel)

    def forget(self) -> None:
        """Let go of all kernel objects."""
        self._taken, self._free = [], {}


def bind(device: "OpenCLDevice", parts: Sequence[Placed], kernels: Kernels | None = None) -> Ready:
    """One launch for `parts`, with its arguments set; its kernel object is one of `kernels`."""
    if device.facts.wide:
        # PoCL gives half of all groups to one thread: not all of the largest part.
        parts = sorted(parts, key=_bytes)
    first = parts[0]
    count, block, groups = joined(parts)
    make = device.programs.kernel if kernels is None else kernels.take
    kernel = make(first.launch, count)
    memory = [cast("OpenCLBuffer", buffer).memory for buffer in first.buffers]
    return with_arguments(kernel, memory, block, groups, first.launch.local)


def _bytes(part: Placed) -> int:
    """What a launch reads and writes."""
    return sum(range_.end - range_.start for range_ in part.ranges)


def with_arguments(
    kernel: Any, memory: Iterable[Any], block: Any, groups: Grid, local: Grid
) -> Ready:
    """`kernel` with its memory and its parameter block set, and the sizes of its launch."""
    arguments = (*memory, block)
    for i, argument in enumerate(arguments):
        kernel.set_arg(i, argument)
    x, y, z = groups
    a, b, c = local
    return Ready(kernel, (x * a, y * b, z * c), local)
