"""`OpenCLPlan`: every launch with its arguments set; a run only enqueues."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyopencl as cl

from tensorplug.backend import Plan
from tensorplug.errors import map_driver_errors
from tensorplug.graph import BoundGraph
from tensorplug_opencl.memory import ERRORS, OpenCLBuffer
from tensorplug_simt.merging import Placed, joined, merged
from tensorplug_simt.placing import place
from tensorplug_simt.program import Grid
from tensorplug_simt.reuse import reusing

if TYPE_CHECKING:
    from tensorplug_opencl.backend import OpenCLBackend
    from tensorplug_opencl.device import OpenCLDevice


class Ready(NamedTuple):
    """A kernel with its arguments, and its sizes as the driver wants them."""

    kernel: Any
    size: tuple[int, int, int]
    local: tuple[int, int, int]


class OpenCLPlan(Plan):
    """Kernels are made once; `rebind` sets the arguments that changed."""

    backend: "OpenCLBackend"

    def __init__(self, backend: "OpenCLBackend", bound: BoundGraph) -> None:
        super().__init__(backend, bound)
        self._rebind()

    def _rebind(self) -> None:
        graph, bindings = self.bound.graph, self.bound.bindings
        device = self.backend.device
        placed = reusing(place(device, work, bindings) for work in graph.work)
        self._ready = [bind(device, parts) for parts in merged(placed)]

    def _run(self) -> None:
        enqueue(self.backend, self._ready)

    def _close(self) -> None:
        self._ready = []


def bind(device: "OpenCLDevice", parts: Sequence[Placed]) -> Ready:
    """One launch for `parts`, with its arguments set."""
    first = parts[0]
    count, block, groups = joined(parts)
    kernel = device.programs.kernel(first.launch, count)
    memory = [cast("OpenCLBuffer", buffer).memory for buffer in first.buffers]
    return with_arguments(kernel, memory, block, groups, first.launch.local)


def with_arguments(
    kernel: Any, memory: Iterable[Any], block: Any, groups: Grid, local: Grid
) -> Ready:
    """`kernel` with its memory and its parameter block, for so many groups."""
    arguments = (*memory, block)
    for i, argument in enumerate(arguments):
        kernel.set_arg(i, argument)
    x, y, z = groups
    a, b, c = local
    return Ready(kernel, (x * a, y * b, z * c), local)


def enqueue(backend: "OpenCLBackend", launches: Sequence[Ready]) -> None:
    """Queue the launches."""
    queue, put = backend.queue, cl.enqueue_nd_range_kernel
    with map_driver_errors(ERRORS, f"{backend.name}: launch"):
        if backend.profile:
            for kernel, size, local in launches:
                backend.timed(kernel.function_name, put(queue, kernel, size, local))
            return
        queue_all(queue, launches)


def queue_all(queue: Any, launches: Sequence[Ready]) -> None:
    """Put the launches into a queue."""
    put = cl.enqueue_nd_range_kernel
    for kernel, size, local in launches:
        put(queue, kernel, size, local)
