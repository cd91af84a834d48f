"""`RandomTests`: random graphs give the reference's results on the device and the cpu together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tensorplug as tp
from tensorplug.device import Backend, Rounding, Tensor
from tensorplug_cpu import reference
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.cases.bounds import rounding_of
from tensorplug_testing.programs import GraphCode, programs

EXAMPLES = {"smoke": 30, "ci": 100, "full": 1000}
LIMITS = {True: 1e-8, False: 1e-3}
"""Limits of the normalised square error, by whether all values of the program are in f32 and no
product rounds its operands."""
RUNS = 2
FLOOR = 1e-3
"""Results with a smaller mean square consist of cancellation errors: inputs are from -1 to 1."""


class RandomTests:
    """Random programs of views, writes, in-place ops and conversions between types."""

    def test_random_graphs_give_what_the_reference_gives(
        self, backend: Backend, kit_seed: int, request: pytest.FixtureRequest
    ) -> None:
        examples = EXAMPLES[request.config.getoption("tensorplug_tier", "ci")]

        # Hypothesis shrinks failures but does not explain them: the printed program is enough.
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @seed(kit_seed)
        @given(program=programs())
        def agree(program: GraphCode) -> None:
            found = problem(program, backend)
            assert not found, f"{found} (seed {program.seed}) after\n{program}"

        agree()


def problem(program: GraphCode, backend: Backend) -> str:
    """Run a program on `backend` and describe the first wrong tensor; empty if all are right."""
    tensors = program.build()
    outputs = [tensors[i] for i in program.outputs]
    graph = tp.Graph(outputs, effects=[tensors[i] for i in program.writes])
    rounds = any(rounding_of(backend, node) is not Rounding.NONE for node in graph.nodes)
    exact = program.exact and not rounds
    inputs = [program.stored(graph.leafs, again=n) for n in range(RUNS)]
    with CPUDevice("cpu:fallback") as device, device.open() as fallback:
        runs = _scheduled(graph, inputs, [backend, fallback])
    for stored, got in zip(inputs, runs, strict=True):
        wanted = reference.compute(graph, stored)
        for tensor, ours in zip(outputs, got, strict=True):
            found = tensor in wanted and _apart(ours, wanted[tensor], exact=exact)
            if found:
                return f"t{tensors.index(tensor)} {found}"
    return ""


def _scheduled(
    graph: tp.Graph, inputs: Sequence[dict[Tensor, Any]], backends: list[Backend]
) -> list[list[Any]]:
    """Outputs of several runs: an element that a kernel does not write is wrong in one of them."""
    pins = _pins(graph, *backends)
    with tp.Scheduler(backends) as scheduler, scheduler.schedule(graph, pins=pins) as schedule:
        found = []
        for values in inputs:
            results = schedule.run(values)
            found.append([reference.decode(t.dtype, np.asarray(results[t])) for t in graph.outputs])
        return found


def _pins(graph: tp.Graph, first: Backend, last: Backend) -> dict[Tensor, Backend]:
    """Pin the nodes that `first` supports to `first`; other nodes and writes are not pinned.

    A write runs where its memory is, so a node whose memory is written by a node that `first` does
    not support is pinned to `last`.
    """
    able = {n: not first.device.refuses(n) for n in graph.nodes if not n.is_view}
    stuck = {root for node in able if not able[node] for root in node.written_roots}
    return {
        n: last if n in stuck else first for n in able if not n.writes and (able[n] or n in stuck)
    }


def _apart(ours: Any, theirs: Any, *, exact: bool) -> str:
    if ours.shape != theirs.shape:
        return f"has shape {ours.shape}, not {theirs.shape}"
    odd = ~np.isfinite(theirs)
    if exact and not np.array_equal(ours[odd], theirs[odd], equal_nan=True):
        return "has infinities or NaN where the reference has none, or the other way round"
    if odd.any():
        return ""
    error = float(np.sum((ours - theirs) ** 2)) / float(np.sum(theirs**2) + FLOOR * theirs.size)
    limit = LIMITS[exact]
    return "" if error <= limit else f"is off by {error:.3g}, more than {limit:g}"
