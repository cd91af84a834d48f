"""`CudaPlan`: launches that are prepared once, and a CUDA graph of them all.

The first run queues them one by one: kernels are loaded by their first launch, which must not fall
into a capture. The second run captures them, and from then on a run is one launch. Captures have
streams of their own: memory that is freed meanwhile waits for the backend's stream, and CUDA
forbids waits for a stream that captures. With several of these streams, independent launches are
branches of the graph.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from cupy.cuda import driver, runtime

from tensorplug.device.ranges import Host, Range
from tensorplug_cuda.branches import Touch, fork, one_by_one, spread, touched
from tensorplug_cuda.cublaslt import Product
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import CudaBuffer
from tensorplug_cuda.products import apart
from tensorplug_simt.dialects.cuda import grid, is_folded
from tensorplug_simt.merging import Placed, joined
from tensorplug_simt.program import Grid
from tensorplug_simt.recording import RecordedPlan

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend


class Ready(NamedTuple):
    """A function of the GPU with its groups, their items, and its arguments."""

    name: str
    function: Any
    groups: Grid
    local: Grid
    arguments: tuple[Any, ...]


class CudaPlan(RecordedPlan):
    """Queues its launches, then captures them, then launches what was captured."""

    backend: "CudaBackend"
    fewest = 2  # one launch costs as much as the graph does
    refusals = (RuntimeError, driver.CUDADriverError)

    @property
    def branches(self) -> int:
        """How many streams the launches are captured on."""
        return self._branches.streams

    @property
    def longest(self) -> int:
        """How many launches of a captured run follow each other at most."""
        return self._branches.longest

    def _bind(self, launches: Sequence[tuple[Placed, ...]]) -> None:
        launches = list(apart(launches))
        super()._bind(launches)
        streams = len(self.backend.sides)
        if streams == 1:
            self._branches = one_by_one(len(launches))
        else:
            pairs = zip(launches, self._ready, strict=True)
            found = ([*touched(parts), *workspace(launch)] for parts, launch in pairs)
            self._branches = spread(found, streams)

    def _run(self) -> None:
        backend = self.backend
        with driver_errors(f"{backend.name}: launch"), backend.device.current():
            super()._run()

    @property
    def _may_be_recorded(self) -> bool:
        return not self.backend.profile

    def _record(self) -> Any:
        streams = self.backend.sides
        # Relaxed: memory may be freed meanwhile, by the collector of garbage or another thread.
        streams[0].begin_capture(runtime.streamCaptureModeRelaxed)
        try:
            fork(streams, self._ready, self._branches)
        finally:
            graph = streams[0].end_capture()
        return graph

    def _repeat(self, recording: Any) -> None:
        recording.launch(self.backend.stream)


def ready(backend: "CudaBackend", parts: Sequence[Placed]) -> Ready:
    """One launch for `parts`, with its arguments: the memory, then the parameter block by value.

    Products of cuBLASLt have one part. They are called as kernels are, and keep the memory.
    """
    first = parts[0]
    launch = first.launch
    memory = [cast("CudaBuffer", buffer).memory for buffer in first.buffers]
    product = backend.products.of(first)
    if product is not None:
        return Ready("cublaslt", product, launch.groups, launch.local, tuple(memory))
    count, block, groups = joined(parts)
    function = backend.device.programs.kernel(launch, parts=count, folded=is_folded(groups))
    sizes, more = grid(groups)
    arguments = (*memory, block, *(np.int32(number) for number in more))
    return Ready(launch.kernel.name, function, sizes, launch.local, arguments)


def workspace(launch: Ready) -> list[Touch]:
    """The memory that all products of cuBLASLt on a stream use: they follow each other."""
    if not isinstance(launch.function, Product):
        return []
    return [(Range(Host.MEMORY, *launch.function.workspace), True)]
