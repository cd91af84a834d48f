"""`OpenCLPlan`: every launch with its arguments set; a run only enqueues."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyopencl as cl

from tensorplug.backend import Plan
from tensorplug.errors import Refusal, ShapeError, Unsupported, map_driver_errors
from tensorplug.fusion import Group
from tensorplug.graph import Bindings, BoundGraph
from tensorplug.tensor import Storage, Tensor
from tensorplug_opencl.memory import ERRORS, OpenCLBuffer, scratch_start
from tensorplug_simt.merging import Placed, merged, merged_groups, merged_parameters, most_parts
from tensorplug_simt.program import Grid, Launch, Region

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
        placed = [part for work in graph.work for part in place(device, work, bindings)]
        self._ready = [bind(device, parts) for parts in merged(placed)]

    def _run(self) -> None:
        enqueue(self.backend, self._ready)

    def _close(self) -> None:
        self._ready = []


def place(device: "OpenCLDevice", work: Tensor | Group, bindings: Bindings) -> list[Placed]:
    """The launches of a node or a group, and where they work. Raises Unsupported, ShapeError."""
    program = device.lower_work(work)
    if isinstance(program, Refusal):
        raise Unsupported(f"{device.name}: {work}: {program.reason}")
    last = work if isinstance(work, Tensor) else work.last
    home = bindings.where(last)
    free = Storage(home.buffer, home.offset + scratch_start(last))
    return [_placed(launch, bindings, free) for launch in program.launches]


def _placed(launch: Launch, bindings: Bindings, free: Storage) -> Placed:
    buffers, offsets = [], []
    for region in launch.regions.values():
        here = bindings.where(region.tensor) if region.tensor is not None else free
        offset = here.offset + region.offset
        _check(here, region, offset)
        buffers.append(here.buffer)
        offsets.append(offset)
    return Placed(launch, tuple(buffers), tuple(offsets))


def _check(place: Storage, region: Region, offset: int) -> None:
    buffer = place.buffer
    if not isinstance(buffer, OpenCLBuffer):
        raise Unsupported(f"{region.tensor}: lies in {buffer!r}, which kernels cannot reach")
    first, end = (offset + edge for edge in region.span)
    if first < 0 or end > buffer.size:
        raise ShapeError(f"{region.tensor}: bytes {first} to {end} are beyond {buffer!r}")


def bind(device: "OpenCLDevice", parts: Sequence[Placed]) -> Ready:
    """One launch for `parts`, with its arguments set."""
    first, several = parts[0], len(parts) > 1
    launch = first.launch
    if several:
        kernel = device.programs.kernel(launch, most_parts(launch.kernel))
        block, groups = merged_parameters(parts), merged_groups(parts)
    else:
        kernel = device.programs.kernel(launch)
        block, groups = launch.parameters(first.named_offsets), launch.groups
    memory = [cast("OpenCLBuffer", buffer).memory for buffer in first.buffers]
    return with_arguments(kernel, memory, block, groups, launch.local)


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
        for kernel, size, local in launches:
            put(queue, kernel, size, local)
