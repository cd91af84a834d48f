"""`CudaPlan`: launches that are prepared once, and a CUDA graph of them all.

The first run queues them one by one: kernels are loaded by their first launch, which must not fall
into a capture. The second run captures them, and from then on a run is one launch. A plan that is
bound anew starts again, so one that runs once for each binding is never captured. Captures have
streams of their own: memory that is freed meanwhile waits for the backend's, and nobody may wait
for one that captures. Where there are several, launches that need not follow each other are
branches of the graph.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from cupy.cuda import driver, runtime

from tensorplug.device import Part
from tensorplug_cuda.branches import Branches, fork, one_by_one, spread, touched
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import CudaBuffer
from tensorplug_simt.dialects.cuda import grid, is_folded
from tensorplug_simt.merging import Placed, joined
from tensorplug_simt.plan import SimtPlan
from tensorplug_simt.program import Grid

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend

FEWEST = 2
"""Launches that are worth a graph: one costs as much as the graph does."""


class Ready(NamedTuple):
    """A function of the GPU with its groups, their items, and its arguments."""

    name: str
    function: Any
    groups: Grid
    local: Grid
    arguments: tuple[Any, ...]


class CudaPlan(SimtPlan):
    """Queues its launches, then captures them, then launches what was captured."""

    backend: "CudaBackend"

    def __init__(self, backend: "CudaBackend", bound: Part) -> None:
        self._graph: Any = None
        self.refusal = ""
        """Why the launches cannot be captured; empty as long as they may be."""
        super().__init__(backend, bound)

    @property
    def captured(self) -> bool:
        """Whether a run is one launch."""
        return self._graph is not None

    @property
    def launches(self) -> int:
        """How many launches a run has where it is not captured."""
        return len(self._ready)

    @property
    def branches(self) -> int:
        """How many streams the launches are captured on."""
        return self._branches.streams

    @property
    def longest(self) -> int:
        """How many launches of a captured run follow each other at most."""
        return self._branches.longest

    def _bind(self, launches: Sequence[tuple[Placed, ...]]) -> None:
        super()._bind(launches)
        self._branches = self._spread(launches)
        self._drop_graph()
        self._ran, self.refusal = False, ""

    def _spread(self, together: Sequence[tuple[Placed, ...]]) -> Branches:
        """The streams of the launches."""
        streams = len(self.backend.sides)
        if streams == 1:
            return one_by_one(len(together))
        return spread(map(touched, together), streams)

    def _run(self) -> None:
        backend = self.backend
        with driver_errors(f"{backend.name}: launch"), backend.device.current():
            graph = self._captured() if self._ran and not backend.profile else None
            if graph is not None:
                graph.launch(backend.stream)
            else:
                super()._run()
        self._ran = True

    def _captured(self) -> Any:
        """The graph of the launches, which is made when it is first wanted; None without one."""
        if self._graph is not None or self.refusal or len(self._ready) < FEWEST:
            return self._graph
        streams = self.backend.sides
        try:
            # Relaxed: memory may be freed meanwhile, by the collector of garbage or another thread.
            streams[0].begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                fork(streams, self._ready, self._branches)
            finally:
                self._graph = streams[0].end_capture()
        except (RuntimeError, driver.CUDADriverError) as error:
            self._graph, self.refusal = None, str(error)
        return self._graph

    def _drop_graph(self) -> None:
        if self._graph is not None:
            # A graph that still runs may not go.
            self.backend.drain()
            self._graph = None

    def _close(self) -> None:
        super()._close()
        self._graph = None


def ready(backend: "CudaBackend", parts: Sequence[Placed]) -> Ready:
    """One launch for `parts`, with its arguments: the memory, then the parameter block by value."""
    first = parts[0]
    launch = first.launch
    count, block, groups = joined(parts)
    function = backend.device.programs.kernel(launch, parts=count, folded=is_folded(groups))
    memory = [cast("CudaBuffer", buffer).memory for buffer in first.buffers]
    sizes, more = grid(groups)
    arguments = (*memory, block, *(np.int32(number) for number in more))
    return Ready(launch.kernel.name, function, sizes, launch.local, arguments)
