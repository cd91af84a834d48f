"""Plans of chains of small nodes, for benchmarks of what a launch costs; this measures nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.graph.tensor import Tensor

STEP = 256
"""Bytes of each node's result."""
STEPS: Sequence[Callable[[Tensor, int], Tensor]] = (
    lambda x, i: tp.scale(x, 2.0 if i % 2 else 0.5),
    lambda x, _: tp.neg(x),
    lambda x, _: tp.abs(x),
    lambda x, _: tp.relu(x),
)
"""One step of each chain, by its number; of kernels of their own, which are not merged."""


@contextmanager
def planned(stream: Backend, nodes: int, chains: int = 1) -> Iterator[Any]:
    """A plan of `chains` independent chains, each of `nodes` nodes."""
    ends = [stream.place("x", np.ones(STEP // 4, np.float32))] * chains
    steps = []
    for i in range(nodes):
        ends = [step(end, i) for step, end in zip(STEPS, ends, strict=False)]
        steps += ends
    with stream.buffer_type.alloc(STEP * len(steps)) as buffer:
        places = {step: tp.Place(buffer, STEP * i) for i, step in enumerate(steps)}
        with stream.plan(tp.Part.of(tp.Graph(ends), tp.Bindings(places))) as plan:
            yield plan
        stream.synchronize()
