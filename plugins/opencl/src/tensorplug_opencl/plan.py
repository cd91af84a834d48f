"""`OpenCLPlan`: every launch with its arguments set; a run only enqueues."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyopencl as cl

from tensorplug.backend import Plan
from tensorplug.errors import Refusal, ShapeError, Unsupported, map_driver_errors
from tensorplug.fusion import Group
from tensorplug.graph import Bindings, BoundGraph
from tensorplug.tensor import Storage, Tensor
from tensorplug_opencl.memory import ERRORS, OpenCLBuffer, scratch_start
from tensorplug_simt.program import Launch, Region

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
        self._ready = [
            ready for work in graph.work for ready in prepare(self.backend.device, work, bindings)
        ]

    def _run(self) -> None:
        enqueue(self.backend, self._ready)

    def _close(self) -> None:
        self._ready = []


def prepare(device: "OpenCLDevice", work: Tensor | Group, bindings: Bindings) -> list[Ready]:
    """The launches of a node or a group with all arguments set. Raises Unsupported, ShapeError."""
    program = device.lower_work(work)
    if isinstance(program, Refusal):
        raise Unsupported(f"{device.name}: {work}: {program.reason}")
    last = work if isinstance(work, Tensor) else work.last
    home = bindings.where(last)
    free = Storage(home.buffer, home.offset + scratch_start(last))
    return [_bind(device, launch, bindings, free) for launch in program.launches]


def _bind(device: "OpenCLDevice", launch: Launch, bindings: Bindings, free: Storage) -> Ready:
    kernel = device.programs.kernel(launch)
    offsets = {}
    for i, (name, region) in enumerate(launch.regions.items()):
        place = bindings.where(region.tensor) if region.tensor is not None else free
        offsets[name] = place.offset + region.offset
        kernel.set_arg(i, _memory(place, region, offsets[name]))
    kernel.set_arg(len(offsets), launch.parameters(offsets))
    x, y, z = launch.groups
    a, b, c = launch.local
    return Ready(kernel, (x * a, y * b, z * c), launch.local)


def _memory(place: Storage, region: Region, offset: int) -> Any:
    buffer = place.buffer
    if not isinstance(buffer, OpenCLBuffer):
        raise Unsupported(f"{region.tensor}: lies in {buffer!r}, which kernels cannot reach")
    if offset < 0 or offset + region.nbytes > buffer.size:
        raise ShapeError(
            f"{region.tensor}: bytes {offset} to {offset + region.nbytes} are beyond {buffer!r}"
        )
    return buffer.memory


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
