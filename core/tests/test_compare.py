"""Graph copies and node-by-node comparison, on fake devices."""

from collections.abc import Iterator

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.errors import GraphError
from tensorplug.inspect.compare import GraphCopy, compare_backends
from tensorplug_testing.null import NullDevice

X = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def pair() -> Iterator[tuple[Backend, Backend]]:
    good = NullDevice("null:0")
    wrong = NullDevice("null:1", kernels={"relu": lambda _n, out, x: np.multiply(x, 1.01, out=out)})
    yield good.open(), wrong.open()
    good.close(force=True)
    wrong.close(force=True)


def test_graph_copy_holds_data_of_its_own(pair: tuple[Backend, Backend]) -> None:
    first, second = pair
    w = first.place("w", X)
    y = tp.add(w, w)

    with GraphCopy(second, tp.Graph(y)) as copied:
        tp.transfer.fill(w, 0)
        second.compute(copied.bound)

        np.testing.assert_array_equal(tp.transfer.read(y, copied.bound.bindings), 2 * X)


def test_graph_copy_holds_the_values_that_were_computed(pair: tuple[Backend, Backend]) -> None:
    first, second = pair
    x = tp.input("x", (4, 4), tp.F32)
    a = tp.add(x, first.place("w", X), name="a")
    table = first.place("table", np.zeros((8, 4), np.float32))
    written = tp.cpy(a, tp.view(table, (4, 4), offset=64))
    b = tp.relu(tp.reshape(a, (2, 8)), name="b")
    graph = tp.Graph(b, effects=[written])
    with GraphCopy(first, graph) as original:
        tp.transfer.write(x, -X, original.bound.bindings)
        first.compute(original.bound)

        with GraphCopy(second, graph, original.bound.bindings) as copied:
            for tensor in (x, a, b, table, written, *graph.leafs):
                expected = tp.transfer.read(tensor, original.bound.bindings)
                found = tp.transfer.read(tensor, copied.bound.bindings)
                np.testing.assert_array_equal(found, expected, str(tensor))


def test_graph_copy_frees_its_memory(pair: tuple[Backend, Backend]) -> None:
    _, second = pair

    GraphCopy(second, tp.Graph(tp.relu(tp.input("x", (4, 4), tp.F32)))).close()

    assert second.device.children == [second]


def test_comparison_finds_the_node_that_differs(pair: tuple[Backend, Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    a = tp.add(x, x, name="a")
    b = tp.relu(a, name="b")

    found = {c.node.name: c.nmse for c in compare_backends(tp.Graph(b), *pair, {x: X})}

    assert found["a"] == 0
    assert found["b"] == pytest.approx(1e-4, rel=1e-3)


def test_comparison_of_chosen_nodes_runs_the_graph_whole(pair: tuple[Backend, Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    a = tp.add(x, x, name="a")
    b = tp.sub(a, x, name="b")

    found = [c.node.name for c in compare_backends(tp.Graph(b), *pair, {x: X}, only=[b])]

    assert found == ["b"]


def test_leaving_the_loop_stops_the_comparison(pair: tuple[Backend, Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    graph = tp.Graph(tp.sub(tp.add(x, x), x))

    next(compare_backends(graph, *pair, {x: X}))

    device = pair[0].device
    assert isinstance(device, NullDevice)
    assert device.computed == ["add"]


def test_comparison_without_an_input_names_it(pair: tuple[Backend, Backend]) -> None:
    graph = tp.Graph(tp.relu(tp.input("x", (4, 4), tp.F32)))

    with pytest.raises(GraphError, match=r"compare: input <Tensor 'x'.* has no value; give it in"):
        next(compare_backends(graph, *pair, {}))
