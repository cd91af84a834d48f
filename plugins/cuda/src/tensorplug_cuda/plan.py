"""`CudaPlan`: launches that are prepared once, and a CUDA graph of them all.

The first run queues them one by one: kernels are loaded by their first launch, which must not fall
into a capture. The second run captures them, and from then on a run is one launch. A captured plan
that is bound anew has its graph's arguments changed; where that cannot be, and one that is not
captured yet, starts again, so one that runs once for each binding is never captured. Captures have
streams of their own: memory that is freed meanwhile waits for the backend's, and nobody may wait
for one that captures. Where there are several, launches that need not follow each other are
branches of the graph.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from cupy.cuda import driver, runtime

from tensorplug.device import Part, Plan
from tensorplug_cuda.branches import Branches, fork, one_by_one, spread, touched
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.graphs import Captured
from tensorplug_cuda.kernels.library import LIBRARY_PRODUCT
from tensorplug_cuda.memory import CudaBuffer
from tensorplug_simt.dialects.cuda import grid, is_folded
from tensorplug_simt.merging import Placed, joined, merged
from tensorplug_simt.placing import place
from tensorplug_simt.program import Grid
from tensorplug_simt.reuse import reusing

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


class CudaPlan(Plan):
    """Queues its launches, then captures them, then launches what was captured."""

    backend: "CudaBackend"

    def __init__(self, backend: "CudaBackend", bound: Part) -> None:
        super().__init__(backend, bound)
        self._graph: Captured | None = None
        self.refusal = ""
        """Why the launches cannot be captured; empty as long as they may be."""
        self._branches = one_by_one(0)
        self._rebind()

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

    def _rebind(self) -> None:
        bound, bindings = self.bound, self.bound.bindings
        device = self.backend.device
        placed = reusing(place(device, work, bindings) for work in bound.work)
        together = list(apart(merged(placed)))
        self._ready = [ready(self.backend, parts) for parts in together]
        former, self._branches = self._branches, self._spread(together)
        if self._graph is None or former != self._branches or not self._rebind_graph(self._graph):
            self._drop_graph()
            self._ran, self.refusal = False, ""

    def _spread(self, together: Sequence[tuple[Placed, ...]]) -> Branches:
        """The streams of the launches."""
        streams = len(self.backend.sides)
        if streams == 1:
            return one_by_one(len(together))
        pairs = zip(together, self._ready, strict=True)
        found = (touched(parts, launch.function) for parts, launch in pairs)
        return spread(found, streams)

    def _run(self) -> None:
        backend = self.backend
        with driver_errors(f"{backend.name}: launch"), backend.device.current():
            graph = self._captured() if self._ran and not backend.profile else None
            if graph is not None:
                graph.launch(backend.stream)
            else:
                enqueue(backend, self._ready)
        self._ran = True

    def _captured(self) -> Captured | None:
        """The graph of the launches, which is made when it is first wanted; None without one."""
        if self._graph is not None or self.refusal or len(self._ready) < FEWEST:
            return self._graph
        streams = self.backend.sides
        try:
            # Relaxed: memory may be freed meanwhile, by the collector of garbage or another thread.
            streams[0].begin_capture(runtime.streamCaptureModeRelaxed)
            try:
                nodes = fork(streams, self._ready, self._branches)
            finally:
                graph = streams[0].end_capture()
        except (RuntimeError, driver.CUDADriverError) as error:
            self.refusal = str(error)
            return None
        self._graph = Captured(graph, self._ready, nodes)
        return self._graph

    def _rebind_graph(self, graph: Captured) -> bool:
        with self.backend.device.current():
            return graph.rebind(self._ready)

    def _drop_graph(self) -> None:
        if self._graph is not None:
            # A graph that still runs may not go.
            self.backend.drain()
            self._graph = None

    def _close(self) -> None:
        self._graph, self._ready = None, []


def apart(launches: Iterable[tuple[Placed, ...]]) -> Iterator[tuple[Placed, ...]]:
    """The same, but for products of a library: these are one by one."""
    for parts in launches:
        if parts[0].launch.kernel is LIBRARY_PRODUCT:
            yield from ((part,) for part in parts)
        else:
            yield parts


def ready(backend: "CudaBackend", parts: Sequence[Placed]) -> Ready:
    """One launch for `parts`, with its arguments: the memory, then the parameter block by value."""
    first = parts[0]
    launch = first.launch
    count, block, groups = joined(parts)
    function: Any = backend.products.of(first)
    if function is None:
        function = backend.device.programs.kernel(launch, parts=count, folded=is_folded(groups))
    memory = [cast("CudaBuffer", buffer).memory for buffer in first.buffers]
    sizes, more = grid(groups)
    arguments = (*memory, block, *(np.int32(number) for number in more))
    return Ready(launch.kernel.name, function, sizes, launch.local, arguments)


def enqueue(backend: "CudaBackend", launches: Sequence[Ready]) -> None:
    """Queue the launches one by one; each is timed where the stream is profiled."""
    stream = backend.stream
    for name, function, groups, local, arguments in launches:
        with backend.timed(name):
            function(groups, local, arguments, stream=stream)
