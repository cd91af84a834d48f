"""Fixtures that tests of core share: the fake device in its main forms."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device.ranges import Range
from tensorplug_testing.null import NullDevice

Evaluate = Callable[[tp.Tensor, Mapping[tp.Tensor, np.ndarray]], np.ndarray]


@pytest.fixture
def null() -> Iterator[NullDevice]:
    """A device with memory of its own that works at once."""
    with NullDevice() as device:
        yield device


@pytest.fixture
def host() -> Iterator[NullDevice]:
    """A device in host memory that works at once."""
    with NullDevice("host:0", host=True) as device:
        yield device


@pytest.fixture
def late() -> Iterator[NullDevice]:
    """A device that works only when the host waits."""
    with NullDevice("late:0", asynchronous=True) as device:
        yield device


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """Every range that is compared with another one in the test."""
    overlaps, compared = Range.overlaps, list[Range]()

    def counted(mine: Range, other: Range) -> bool:
        compared.append(mine)
        return overlaps(mine, other)

    monkeypatch.setattr(Range, "overlaps", counted)
    return compared


@pytest.fixture
def evaluate(host: NullDevice) -> Evaluate:
    """What a graph gives when it is computed node by node, each in memory of its own."""

    def run(outputs: tp.Tensor, inputs: Mapping[tp.Tensor, np.ndarray]) -> np.ndarray:
        graph = tp.Graph(outputs)
        roots = {t.root for t in (*graph.leafs, *graph.nodes) if t.root.place is None}
        places = {t: tp.Place(host.buffer_type.alloc(t.nbytes), 0) for t in roots}
        bindings = tp.Bindings(places)
        for tensor, data in inputs.items():
            transfer.write(tensor, data, bindings)
        with host.open() as backend:
            backend.compute(tp.Part.of(graph, bindings))
        return transfer.read(outputs, bindings)

    return run
