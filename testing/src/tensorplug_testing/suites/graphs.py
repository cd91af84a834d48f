"""`GraphTests`: whole graphs on the device; the cpu computes the ops that the device refuses."""

import itertools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Array, Backend, Device, SupportsFusion, Tensor
from tensorplug_cpu import reference
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.suites.blocks import GRAPHS
from tensorplug_testing.suites.drawing import Draw
from tensorplug_testing.suites.work import Rig, Suite

RUNS = 3
"""Runs of each schedule, with new inputs each time."""


class GraphTests(Suite):
    """Graphs like those of models, compared with the float64 reference.

    Each graph runs in four ways: with all supported ops on the device, so that ops can be fused;
    with every value as an output, so that no ops can be fused; with every second op on the cpu, so
    that values are copied in both directions; and as the scheduler chooses. A device with fused
    groups runs each graph with and without fusion.
    """

    @pytest.fixture
    def fallback(self) -> Iterator[Backend]:
        """A stream of the cpu, for ops that the device refuses."""
        with CPUDevice("cpu:kit") as cpu, cpu.open() as backend:
            yield backend

    @pytest.mark.parametrize("name", GRAPHS)
    def test_graph_as_it_is(self, work: Rig, device: Device, fallback: Backend, name: str) -> None:
        trial = Trial(work, fallback, name)

        trial.check(trial.graph, dict.fromkeys(trial.nodes, trial.backend))

    @pytest.mark.parametrize("name", GRAPHS)
    def test_graph_with_every_value_kept(
        self, work: Rig, device: Device, fallback: Backend, name: str
    ) -> None:
        trial = Trial(work, fallback, name)
        kept = tp.Graph([node for node in trial.graph.nodes if not node.is_view])

        trial.check(kept, dict.fromkeys(trial.nodes, trial.backend))

    @pytest.mark.parametrize("name", GRAPHS)
    def test_graph_on_two_devices_in_turn(
        self, work: Rig, device: Device, fallback: Backend, name: str
    ) -> None:
        trial = Trial(work, fallback, name)
        turns = [trial.backend, fallback]

        trial.check(trial.graph, dict(zip(trial.nodes, itertools.cycle(turns), strict=False)))

    @pytest.mark.parametrize("name", GRAPHS)
    def test_graph_where_the_scheduler_puts_it(
        self, work: Rig, device: Device, fallback: Backend, name: str
    ) -> None:
        trial = Trial(work, fallback, name)

        trial.check(trial.graph, {})


class Trial:
    """A graph of GRAPHS with its leafs, and the nodes that the device supports."""

    def __init__(self, work: Rig, fallback: Backend, name: str) -> None:
        self._work, self._fallback = work, fallback
        self._limit = GRAPHS[name].limit
        self._draw = Draw(work, zlib.crc32(name.encode()))
        self.graph = tp.Graph(GRAPHS[name].build(self._draw))
        if any(work.device.refuses(n) for n in self.graph.nodes if n.writes):
            # If the device cannot write caches, they are placed on the cpu, which can.
            self._draw = Draw(work, zlib.crc32(name.encode()), fallback.buffer_type)
            self.graph = tp.Graph(GRAPHS[name].build(self._draw))
        self.backend = work.open()
        ops = [n for n in self.graph.nodes if not n.is_view and not work.device.refuses(n)]
        if not ops:
            pytest.skip(f"{work.device.name} supports no op of this graph")
        # Writes run on the device that has the memory, so they are not pinned.
        self.nodes = [n for n in ops if not n.writes]

    def check(self, graph: tp.Graph, pins: Mapping[Tensor, Backend]) -> None:
        """Run `graph` several times and compare all outputs; caches keep their state."""
        scheduler = self._work.keep(tp.Scheduler([self.backend, self._fallback]))
        fusing = isinstance(self._work.device, SupportsFusion)
        schedules = [
            self._work.keep(scheduler.schedule(graph, pins=pins, fuse=fuse))
            for fuse in ((True, False) if fusing else (False,))
        ]
        stored = dict(self._draw.stored)
        for run, schedule in itertools.product(range(RUNS), schedules):
            inputs = self._draw.inputs()
            memory = reference.execute(graph, {**stored, **inputs})
            results = schedule.run(inputs)
            for node in filter(_is_settled, graph.outputs):
                problem = _difference(results[node], memory.value(node), node, self._limit)
                assert not problem, f"run {run + 1}: {problem}\n{schedule.explain()}"
            for cache in self._draw.caches:
                stored[cache] = _stored(memory.window(cache), cache)


def _is_settled(node: Tensor) -> bool:
    """True if the op defines every element; the order of row numbers may be undefined."""
    return node.op != "top_k"


def _stored(slots: Array, tensor: Tensor) -> Array:
    """The stored values of a device for the values `slots` of the reference."""
    shape = tensor.shape
    if tensor.dtype.is_block:
        shape = (*shape[:-1], tensor.dtype.row_size(tensor.ne[0]))
    return np.array(slots).astype(tensor.dtype.storage).reshape(shape)


def _difference(found: Array, wanted: Array, node: Tensor, limit: float) -> str:
    """Describe how `found` differs from the values of `node`; empty if it is within the limit."""
    ours: Any = reference.decode(node.dtype, found).reshape(-1)
    theirs = wanted.reshape(-1)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return f"{node}: infinities or NaNs differ"
    if not np.isfinite(ours[finite]).all():
        return f"{node}: infinities or NaNs where there are none"
    error = float(np.sum((ours[finite] - theirs[finite]) ** 2))
    scale = float(np.sum(theirs[finite] ** 2)) or 1.0
    return f"{node}: NMSE {error / scale:.2e} exceeds {limit:.0e}" if error / scale > limit else ""
