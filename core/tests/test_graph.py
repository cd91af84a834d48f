"""What a graph holds, in which order, and where bindings say it lies."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.errors import NotAllocated
from tensorplug.graph.tensor import Place, leaf
from tensorplug_testing.null import NullDevice


def x_(*shape: int, name: str = "x", dtype: tp.DType = tp.F32) -> tp.Tensor:
    return tp.input(name, shape, dtype)


# --- order -------------------------------------------------------------------------------------


def test_nodes_come_in_the_order_in_which_they_were_made() -> None:
    x = x_(4)
    a = tp.relu(x)
    b = tp.sqr(x)
    c = tp.add(b, a)

    graph = tp.Graph(c)

    assert graph.nodes == (a, b, c)
    assert graph.leafs == (x,)
    assert graph.inputs == (x,)
    assert graph.outputs == (c,)


def test_what_nothing_needs_is_left_out() -> None:
    x = x_(4)
    needed = tp.relu(x)
    tp.sqr(x)

    assert tp.Graph(needed).nodes == (needed,)


def test_node_used_twice_is_computed_once() -> None:
    x = x_(4)
    a = tp.relu(x)

    graph = tp.Graph(tp.add(a, a))

    assert graph.nodes[0] is a
    assert len(graph.nodes) == 2
    assert graph.uses[a] == 2


def test_leaf_alone_is_a_graph_without_nodes() -> None:
    x = x_(4)

    graph = tp.Graph(x)

    assert graph.nodes == ()
    assert graph.leafs == (x,)


def test_graph_of_nothing_is_refused() -> None:
    with pytest.raises(tp.GraphError) as error:
        tp.Graph([])

    assert str(error.value) == "Graph: no outputs and no effects; there is nothing to compute"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20))
def test_sources_come_before_what_uses_them(edges) -> None:
    tensors = [x_(4), x_(4, name="y")]
    for first, second in edges:
        tensors.append(tp.add(tensors[first % len(tensors)], tensors[second % len(tensors)]))

    graph = tp.Graph(tensors[-1])

    seen = set(graph.leafs)
    for node in graph.nodes:
        assert set(node.sources) <= seen
        seen.add(node)


def test_very_deep_graphs_need_no_recursion() -> None:
    x = x_(1)
    for _ in range(5000):
        x = tp.relu(x)

    assert len(tp.Graph(x).nodes) == 5000


# --- effects -----------------------------------------------------------------------------------


def test_effect_is_kept_though_nothing_reads_it() -> None:
    cache, rows, ids = x_(8, 4), x_(2, 4, name="rows"), x_(2, name="ids", dtype=tp.I32)
    write = tp.set_rows(cache, rows, ids)
    y = tp.relu(rows)

    graph = tp.Graph(y, effects=[write])

    assert graph.nodes == (write, y)
    assert graph.effects == (write,)


def test_effects_alone_are_a_graph() -> None:
    x = x_(4)
    write = tp.cpy(tp.relu(x), x_(4, name="y"))

    assert tp.Graph([], effects=[write]).outputs == ()


def test_reads_and_writes_of_one_memory_keep_program_order() -> None:
    cache, x = x_(4, name="cache"), x_(4)
    before = tp.relu(cache)
    write = tp.cpy(x, cache)
    after = tp.sqr(cache)

    graph = tp.Graph([after, before], effects=[write])

    assert graph.nodes == (before, write, after)


def test_reading_the_result_of_a_write_needs_no_effect() -> None:
    cache, x = x_(4, name="cache"), x_(4)
    written = tp.cpy(x, cache)

    graph = tp.Graph(tp.relu(written))

    assert written in graph.nodes
    assert graph.effects == ()


def test_view_brings_the_memory_it_looks_at() -> None:
    x = x_(4, 4)
    node = tp.relu(x)
    view = node[1][2:]

    graph = tp.Graph(tp.sqr(view))

    assert node in graph.nodes
    assert view in graph.nodes
    assert view.is_view
    assert not node.is_view


# --- keys --------------------------------------------------------------------------------------


def key_of(outputs: tp.Tensor | list[tp.Tensor]) -> tuple[object, ...]:
    return tp.Part.of(tp.Graph(outputs)).key


def attention(size: int = 4, scale: float = 1.0, dtype: tp.DType = tp.F32) -> tp.Part:
    q, k = x_(3, size, name="q"), x_(5, size, name="k", dtype=dtype)
    return tp.Part.of(tp.Graph(tp.soft_max(q @ k.T, scale=scale)))


def test_parts_built_alike_have_equal_hashable_keys() -> None:
    assert attention().key == attention().key
    assert hash(attention().key) == hash(attention().key)


@pytest.mark.parametrize(
    "other",
    [
        lambda: attention(size=8),
        lambda: attention(scale=0.5),
        lambda: attention(dtype=tp.F16),
        lambda: tp.Part.of(tp.Graph(tp.relu(x_(3, 4) @ x_(5, 4).T))),
    ],
)
def test_sizes_params_types_and_ops_make_keys_differ(other) -> None:
    assert attention().key != other().key


def test_edges_make_keys_differ() -> None:
    a, b = x_(4, name="a"), x_(4, name="b")

    assert key_of(tp.sub(a, b)) != key_of(tp.sub(a, a))
    # One structure with its leafs exchanged: a plan of the one can be bound to the other.
    assert key_of(tp.sub(a, b)) == key_of(tp.sub(b, a))


def test_views_are_told_apart_by_offset_and_strides() -> None:
    x = x_(4, 4)

    keys = [key_of(tp.relu(view)) for view in (x[0], x[1], x[:, 0], x[:1])]

    assert len(set(keys)) == 4


def test_outputs_make_keys_differ() -> None:
    x = x_(4)
    a = tp.relu(x)
    b = tp.sqr(a)

    assert key_of(b) != key_of([b, a])


def test_absent_sources_are_part_of_the_key() -> None:
    x, m = x_(3, 4), x_(3, 4, name="m")

    assert key_of(tp.soft_max(x)) != key_of(tp.soft_max(x, m))


def test_persistent_and_other_leafs_are_told_apart(host: NullDevice) -> None:
    placed = host.open().place("w", [1.0, 2.0])

    plain = leaf("w", (2,), tp.F64)

    assert key_of(tp.dup(placed)) != key_of(tp.dup(plain))


# --- parts -------------------------------------------------------------------------------------


def test_part_reads_what_lies_outside_as_leafs() -> None:
    x = x_(4)
    a = tp.relu(x)
    b = tp.sqr(a)
    c = tp.add(b, a)

    part = tp.Part([b, c], outputs=[c])

    assert part.nodes == (b, c)
    assert part.leafs == (a,)
    assert part.outputs == (c,)
    assert hash(part.key)


def test_part_brings_the_memory_of_its_views_even_if_empty_or_a_scalar() -> None:
    for root in (x_(0), x_()):
        view = tp.reshape(root, (*root.shape, 1))
        node = tp.relu(view)

        part = tp.Part([view, node])

        assert part.leafs == (root,)


# --- bindings ----------------------------------------------------------------------------------


@pytest.fixture
def buffer(host: NullDevice) -> tp.Buffer:
    return host.buffer_type.alloc(1024)


def test_tensor_lies_where_the_table_says(buffer: tp.Buffer) -> None:
    x = x_(4)

    assert tp.Bindings({x: Place(buffer, 64)}).where(x) == Place(buffer, 64)


def test_views_and_writes_lie_in_their_root(buffer: tp.Buffer) -> None:
    x = x_(4, 4)
    bindings = tp.Bindings({x: Place(buffer, 64)})

    assert bindings.where(x[1][2:]) == Place(buffer, 64 + 24)
    assert bindings.where(tp.cpy(x_(4), x[2])) == Place(buffer, 64 + 32)
    assert bindings.where(x.T) == Place(buffer, 64)


def test_persistent_tensors_lie_at_their_own_place(host: NullDevice) -> None:
    with host.open() as backend:
        w = backend.place("w", [[1.0, 2.0], [3.0, 4.0]])

        assert tp.Bindings().where(w) == w.place
        assert tp.Bindings().where(w[1]).offset == 16


def test_table_goes_before_root_and_own_place(host: NullDevice, buffer: tp.Buffer) -> None:
    with host.open() as backend:
        w = backend.place("w", [[1.0, 2.0], [3.0, 4.0]])
        view = w[1]

        bindings = tp.Bindings({w: Place(buffer, 0)}).with_places({view: Place(buffer, 512)})

        assert bindings.where(w) == Place(buffer, 0)
        assert bindings.where(view) == Place(buffer, 512)
        assert bindings.where(w[0]) == Place(buffer, 0)


def test_bindings_are_never_changed(buffer: tp.Buffer) -> None:
    x, y = x_(4), x_(4)
    table = {x: Place(buffer, 0)}
    bindings = tp.Bindings(table)

    table[y] = Place(buffer, 64)
    bindings.with_places({y: Place(buffer, 64)})

    with pytest.raises(NotAllocated):
        bindings.where(y)


def test_tensor_that_lies_nowhere_is_named() -> None:
    with pytest.raises(NotAllocated) as error:
        tp.Bindings().where(x_(4))

    assert str(error.value) == (
        "<Tensor 'x', none, f32[4]>: has no memory in these bindings; schedule its graph first"
    )


# --- lifetime ----------------------------------------------------------------------------------


def test_dropped_graphs_and_tensors_leave_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        x = x_(4)
        y = tp.relu(x[1:])
        graph = tp.Graph(y)
        assert tp.Part.of(graph).key
        assert graph.uses
        gone = [weakref.ref(thing) for thing in (x, y)]

        del x, y, graph

        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_repr_counts() -> None:
    x = x_(4)
    write = tp.cpy(tp.relu(x), x)

    assert repr(tp.Graph(tp.sqr(x), effects=[write])) == (
        "<Graph 3 nodes, 1 leafs, 1 outputs, 1 effects>"
    )
