"""Ids of rows: given ones are checked before a run, others by a sanitizer, in time."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device.plan import NodePlan
from tensorplug.errors import GraphError
from tensorplug.graph.tensor import leaf
from tensorplug.ops.ids import row_ids
from tensorplug_testing.null import NullDevice

IDS = tp.I32


def numbers(*shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def take(node, out, table, ids):
    """A kernel for get_rows that knows of no wrong ids: NumPy raises IndexError for most."""
    out[0, 0] = table[0, 0][ids[0, 0, 0]]


def put(node, out, table, rows, ids):
    table[0, 0][ids[0, 0, 0]] = rows[0, 0]


KERNELS = {"get_rows": take, "set_rows": put}


@pytest.fixture
def device():
    with NullDevice("null:0", kernels=KERNELS) as device:
        yield device


@pytest.fixture
def stream(device):
    with device.open() as stream:
        yield stream


def nodes():
    """One node of every op that has ids, by name."""
    ids, pairs = leaf("ids", (3,), IDS), leaf("pairs", (3, 2), IDS)
    x, rows = leaf("x", (3, 2, 8), tp.F32), leaf("rows", (3, 8), tp.F32)
    table = leaf("table", (5, 8), tp.F32)
    found = [
        tp.get_rows(table, ids),
        tp.set_rows(table, rows, ids),
        tp.get_rows_back(rows, ids, (5, 8)),
        tp.add_id(x, table, pairs),
        tp.mul_mat_id(leaf("w", (5, 4, 8), tp.F32), x, pairs),
        tp.ssm_scan(
            leaf("s", (5, 2, 1, 4), tp.F32),
            leaf("x", (3, 7, 2, 1), tp.F32),
            leaf("dt", (3, 7, 2), tp.F32),
            leaf("a", (2, 1), tp.F32),
            leaf("b", (3, 7, 1, 4), tp.F32),
            leaf("c", (3, 7, 1, 4), tp.F32),
            ids,
        ),
    ]
    return {node.op: node for node in found}


NODES = nodes()


def test_every_op_with_a_source_called_ids_says_what_the_ids_number():
    named = {op.name for op in tp.OPS.values() if "ids" in op.positions}

    assert named == set(NODES)
    assert {name for name, op in tp.OPS.items() if op.holds_ids} == named


@pytest.mark.parametrize("op", NODES)
def test_ids_number_the_rows_of_the_table(op):
    (held,) = row_ids(NODES[op])

    assert (held.name, held.rows) == ("ids", 5)


@pytest.mark.parametrize("right", [[0, 4], [-1, -1], [-1, 2], []])
def test_ids_of_rows_and_those_for_none_are_right(right):
    (held,) = row_ids(NODES["get_rows"])

    held.check(np.array(right, np.int32))


@pytest.mark.parametrize(
    ("ids", "value", "at"),
    [
        ([5], 5, "[0]"),
        ([0, -2, 9], -2, "[1]"),
        ([[0, 1], [2, 2**31 - 1]], 2**31 - 1, "[1, 1]"),
        ([-(2**31)], -(2**31), "[0]"),
    ],
)
def test_wrong_id_is_named_with_its_place_and_the_rows_there_are(ids, value, at):
    node = NODES["get_rows"]
    (held,) = row_ids(node)

    with pytest.raises(GraphError) as caught:
        held.check(np.array(ids, np.int32))

    assert str(caught.value) == (
        f"{node}: ids {held.ids} holds {value} at {at}, which names no row; rows are 0 to 4, and "
        "-1 stands for none"
    )
    assert caught.value.node == str(node)


def test_op_whose_ids_number_nothing_known_is_not_registered():
    with pytest.raises(GraphError) as caught:
        tp.register_op(
            tp.ops.table.Op(
                "test.ids",
                sources=(tp.ops.table.Source("ids", frozenset({IDS}), rows_of=("table", 1)),),
                shape=lambda call: (call["ids"].ne, 1),
                dtype=lambda call: tp.F32,
                formula="y = table[ids]",
            )
        )

    assert str(caught.value) == (
        "register_op: 'test.ids' has ids for rows of ['table'], which are not required sources"
    )


# --- before a run ---------------------------------------------------------------------------


def whole(ids):
    return ids


def second_row(ids):
    return ids[1]


GIVEN = {"an input": (whole, (3,)), "a view of an input": (second_row, (2, 3))}


@pytest.mark.parametrize("submits", [False, True])
@pytest.mark.parametrize("view", GIVEN)
def test_given_id_is_checked_before_anything_is_written(device, stream, view, submits):
    look, shape = GIVEN[view]
    table = stream.place("table", numbers(5, 8))
    ids, rows = tp.input("ids", shape, IDS), tp.input("rows", (3, 8), tp.F32)
    node = tp.set_rows(table, rows, look(ids))
    wrong = np.zeros(shape, np.int32)
    wrong.flat[-1] = 5

    with tp.Scheduler([stream], parallel=submits).schedule((), effects=[node]) as schedule:
        device.log.clear()
        run = schedule.submit if submits else schedule.run
        with pytest.raises(GraphError, match=r"holds 5 at \[2\], which names no row"):
            run({rows: numbers(3, 8), ids: wrong})

        assert [entry.what for entry in device.log] == []
        run({rows: numbers(3, 8), ids: np.zeros(shape, np.int32)})


@pytest.mark.parametrize(
    ("rows", "checked"),
    [((5, 5, 5), [5]), ((5, 8), [5]), ((8, 5), [8, 5]), ((8, 5, 7, 4), [8, 5, 4])],
)
def test_given_ids_are_checked_once_for_tables_that_have_no_fewer_rows(stream, rows, checked):
    ids = tp.input("ids", (1,), IDS)
    tables = [stream.place(f"table{i}", numbers(count, 8)) for i, count in enumerate(rows)]
    taken = [tp.get_rows(table, ids) for table in tables]

    with tp.Scheduler([stream]).schedule(taken) as schedule:
        uses = schedule.given_ids[ids]
        schedule.run({ids: [min(rows) - 1]})
        with pytest.raises(GraphError, match=f"rows are 0 to {min(rows) - 1}"):
            schedule.run({ids: [min(rows)]})

    assert [use.rows for use in uses] == checked


def test_ids_outside_the_part_that_is_used_may_be_anything(stream):
    ids, table = tp.input("ids", (2, 3), IDS), tp.input("table", (5, 8), tp.F32)
    y = tp.get_rows(table, ids[1])

    with tp.Scheduler([stream]).schedule(y) as schedule:
        got = schedule.run({table: numbers(5, 8), ids: [[99, -7, 5], [0, 4, 1]]})[y]

    assert got[:, 0].tolist() == [1, 33, 9]


def test_wrong_id_in_constant_host_memory_is_found_when_the_graph_is_scheduled():
    with NullDevice("null:0", kernels=KERNELS, host=True) as device, device.open() as stream:
        ids = stream.place("ids", np.array([0, 5], np.int32), usage=tp.WEIGHTS)
        y = tp.get_rows(tp.input("table", (5, 8), tp.F32), ids)

        with pytest.raises(GraphError, match=r"holds 5 at \[1\], which names no row"):
            tp.Scheduler([stream]).schedule(y)


# --- in a run -------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [False, True])
def test_exception_of_a_kernel_for_a_wrong_id_becomes_an_error_that_names_the_node(device, planned):
    ids = leaf("ids", (2,), IDS)
    table = leaf("table", (5, 8), tp.F32)
    node = tp.get_rows(table, ids)
    memory = device.buffer_type
    places = {t: tp.Place(memory.alloc(t.nbytes), 0) for t in (ids, table, node)}
    bindings = tp.Bindings(places)
    tp.transfer.write(ids, np.array([0, 7], np.int32), bindings)

    with device.open() as stream:
        if planned:
            stream.plan_class = NodePlan
        with pytest.raises(GraphError, match=r"holds 7 at \[1\], which names no row") as caught:
            stream.compute(tp.Part.of(tp.Graph(node), bindings))

    assert isinstance(caught.value.__cause__, IndexError)
    assert caught.value.node == str(node)
    assert caught.value.devices == (device,)


@pytest.mark.parametrize("submits", [False, True])
def test_sanitizer_finds_a_wrong_id_before_the_node_that_uses_it_writes(submits):
    kernels = {"cast": lambda node, out, x: np.copyto(out, x, casting="unsafe"), **KERNELS}
    with NullDevice("null:0", kernels=kernels) as device, device.open() as stream:
        table = stream.place("table", numbers(5, 8))
        x, rows = tp.input("x", (3,), tp.F32), tp.input("rows", (3, 8), tp.F32)
        node = tp.set_rows(table, rows, tp.cast(x, "i32"))
        scheduler = tp.Scheduler([stream], sanitize=True, parallel=submits)
        with scheduler.schedule((), effects=[node]) as schedule:
            run = schedule.submit if submits else schedule.run
            with pytest.raises(GraphError, match=r"holds -3 at \[1\], which names no row"):
                run({x: [4, -3, 1], rows: -numbers(3, 8)})
            untouched = tp.transfer.read(table)
            run({x: [4, 3, 1], rows: -numbers(3, 8)})
            scheduler.synchronize()
            written = tp.transfer.read(table)

    np.testing.assert_array_equal(untouched, numbers(5, 8))
    np.testing.assert_array_equal(written[[4, 3, 1]], -numbers(3, 8))
