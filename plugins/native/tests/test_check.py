"""Records that no kernel may compute are refused before anything runs, whatever they hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.dtypes import IQ1_S
from tensorplug_native.library import library
from tensorplug_native.program import NO_TYPE, NODE, Code, Layout, address
from tensorplug_testing.running import bind

LEVELS = [level.index for level in library().levels.values()]
HUGE = 1 << 40


@pytest.fixture(scope="module")
def records(device):
    """A valid record of each op that these tests damage."""
    x, y = tp.input("x", (6, 64), tp.F32), tp.input("y", (1, 64), tp.F32)
    w, ids = tp.input("w", (5, 64), tp.Q8_0), tp.input("ids", (3,), tp.I32)
    q, k = tp.input("q", (4, 6, 64), tp.F32), tp.input("k", (2, 9, 64), tp.F16)
    mask = tp.input("mask", (6, 9), tp.F16)
    nodes = [x + y, tp.mul_mat(w, x), tp.get_rows(w, ids), tp.swiglu(x, x), tp.cast(x, tp.F16)]
    nodes += [tp.soft_max(x), tp.flash_attn_ext(q, k, k, mask, scale=0.1)]
    graph = tp.Graph(nodes)
    with (
        device.open(threads=1) as backend,
        backend.plan(tp.Part.of(graph, bind(device, graph, {}))) as plan,
    ):
        found = np.concatenate([stretch.program._records for stretch in plan._stretches])
        yield {Code(int(record["op"])): record for record in found}


def refused(record, threads=1):
    """Whether each level refuses the record; they agree."""
    nodes = np.array([record])
    answers = {library().prepare(level, address(nodes), 1, threads) < 0 for level in LEVELS}
    (answer,) = answers
    return answer


def changed(record, where, value):
    """A copy with one field changed, named as `("out", "ne", 1)` or `("src", 0, "type")`."""
    nodes = np.array([record])
    target = nodes[0]
    for step in where[:-1]:
        target = target[step]
    target[where[-1]] = value
    return nodes[0]


def test_records_of_plans_are_taken(records):
    assert len(records) == 6
    assert not any(refused(record, threads=2) for record in records.values())


@pytest.mark.parametrize(
    ("code", "where", "value"),
    [
        (Code.JOIN, ("op",), 999),
        (Code.JOIN, ("op",), -1),
        (Code.JOIN, ("out", "ne", 1), 7),
        (Code.JOIN, ("out", "ne", 1), -6),
        (Code.JOIN, ("out", "ne", 2), 0),
        (Code.SOFT_MAX, ("out", "nb", 1), -256),
        (Code.SOFT_MAX, ("out", "nb", 1), 1 << 60),
        (Code.SOFT_MAX, ("out", "nb", 0), 8),
        (Code.SOFT_MAX, ("out", "type"), tp.F16.id),
        (Code.JOIN, ("out", "type"), 5),
        (Code.JOIN, ("out", "type"), 4444),
        (Code.JOIN, ("out", "type"), NO_TYPE),
        (Code.JOIN, ("out", "data"), 0),
        (Code.JOIN, ("out", "data"), 4097),
        (Code.JOIN, ("src", 1, "ne", 0), 63),
        (Code.JOIN, ("src", 1, "type"), NO_TYPE),
        (Code.JOIN, ("i", 0), 99),
        (Code.COPY, ("src", 0, "type"), tp.I32.id),
        (Code.COPY, ("src", 0, "ne", 0), 65),
        (Code.SOFT_MAX, ("src", 0, "ne", 1), 5),
        (Code.MUL_MAT, ("src", 0, "ne", 0), 33),
        (Code.MUL_MAT, ("src", 0, "ne", 0), 96),
        (Code.MUL_MAT, ("src", 0, "ne", 1), 6),
        (Code.MUL_MAT, ("src", 0, "type"), IQ1_S.id),
        (Code.MUL_MAT, ("src", 0, "type"), tp.I32.id),
        (Code.MUL_MAT, ("out", "nb", 1), 258),
        (Code.MUL_MAT, ("src", 0, "layout"), Layout.IN_PANELS),
        (Code.MUL_MAT, ("src", 1, "layout"), Layout.IN_PANELS),
        (Code.JOIN, ("src", 0, "layout"), Layout.IN_PANELS),
        (Code.JOIN, ("out", "layout"), Layout.IN_PANELS),
        (Code.GET_ROWS, ("src", 0, "layout"), 2),
        (Code.GET_ROWS, ("src", 1, "type"), tp.F32.id),
        (Code.GET_ROWS, ("src", 1, "ne", 0), 2),
        (Code.GET_ROWS, ("out", "ne", 2), 2),
        (Code.ATTENTION, ("src", 0, "ne", 2), 5),
        (Code.ATTENTION, ("src", 1, "ne", 1), 8),
        (Code.ATTENTION, ("src", 2, "ne", 2), 1),
        (Code.ATTENTION, ("src", 3, "ne", 0), 8),
        (Code.ATTENTION, ("src", 3, "type"), tp.BF16.id),
    ],
    ids=str,
)
def test_a_damaged_record_is_refused(records, code, where, value):
    assert refused(changed(records[code], where, value))


def test_sizes_whose_product_overflows_are_refused(records):
    record = records[Code.SOFT_MAX].copy()
    for operand in (record["out"], record["src"][0]):
        operand["ne"] = HUGE
        operand["nb"][1:] = 0

    assert refused(record)


def test_ids_that_the_node_itself_would_write_are_refused(records):
    record = records[Code.GET_ROWS].copy()
    record["out"]["data"] = record["src"][1]["data"]

    assert refused(record)


@pytest.mark.parametrize(("count", "threads"), [(-1, 1), (1, 0), (1, -3), (1, 1 << 20)])
def test_impossible_numbers_of_nodes_and_threads_are_refused(records, count, threads):
    nodes = np.array([records[Code.JOIN]])

    assert library().prepare(0, address(nodes), count, threads) == -1


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(min_size=NODE.itemsize, max_size=NODE.itemsize), st.integers(0, len(Code)))
def test_bytes_of_any_kind_are_refused(content, code):
    record = np.frombuffer(content, NODE)[0].copy()
    record["op"] = code

    assert refused(record)


numbers = st.one_of(st.integers(-2, 70), st.integers(-(1 << 63), (1 << 63) - 1))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.data())
def test_what_is_taken_has_a_result_of_the_sizes_of_its_sources(records, data):
    record = records[Code.JOIN]
    for _ in range(data.draw(st.integers(1, 3))):
        operand = data.draw(st.sampled_from([("out",), ("src", 0), ("src", 1)]))
        field, at = data.draw(st.sampled_from(["ne", "nb"])), data.draw(st.integers(0, 3))
        record = changed(record, (*operand, field, at), data.draw(numbers))

    x, out = record["src"][0], record["out"]

    assert refused(record) or ((x["ne"] == out["ne"]).all() and (out["ne"] > 0).all())
