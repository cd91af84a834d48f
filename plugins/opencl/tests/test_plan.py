"""Plans: what binding them again costs, and that it does not change queued work."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import Place
from tensorplug.graph.tensor import input

X = np.arange(-8, 8, dtype=np.float32)


@pytest.fixture
def graph():
    """A graph of twelve launches, most of which share a program."""
    x = input("x", X.shape, tp.F32)
    y = x
    for _ in range(4):
        y = tp.add(tp.scale(tp.relu(y), 2.0), x)
    return tp.Graph(y)


def bound(graph, device):
    """`graph` in memory of its own, with X written."""
    roots = list(dict.fromkeys(t.root for t in (*graph.leafs, *graph.nodes)))
    kind = device.buffer_type
    buffer = kind.alloc(len(roots) * max(kind.alignment, X.nbytes))
    step = buffer.size // len(roots)
    places = {t: Place(buffer, i * step) for i, t in enumerate(roots)}
    made = tp.Part.of(graph, tp.Bindings(places))
    transfer.write(graph.inputs[0], X, made.bindings)
    return made


def wanted(x):
    y = x
    for _ in range(4):
        y = 2 * np.maximum(y, 0) + x
    return y


def test_plan_that_is_bound_again_makes_no_kernel_objects(device, graph, monkeypatch):
    with device.open() as stream, stream.plan(bound(graph, device)) as plan:
        made = []
        make = device.programs.kernel
        monkeypatch.setattr(
            type(device.programs), "kernel", lambda _, *given: made.append(given) or make(*given)
        )

        for _ in range(3):
            plan.rebind(bound(graph, device))
            plan.run()
        stream.synchronize()

        assert not made
        found = transfer.read(graph.outputs[0], plan.bound.bindings)
        np.testing.assert_array_equal(found, wanted(X))


def test_binding_again_leaves_queued_launches_their_arguments(device, graph):
    homes = [bound(graph, device) for _ in range(4)]

    with device.open() as stream, stream.plan(homes[0]) as plan:
        for home in homes:
            plan.rebind(home)
            plan.run()
        stream.synchronize()

    for home in homes:
        np.testing.assert_array_equal(transfer.read(graph.outputs[0], home.bindings), wanted(X))
