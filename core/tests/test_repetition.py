"""How sources repeat, and what a write may read: the docstrings of ops, by example."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_cpu import reference
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.running import run

RNG = np.random.default_rng(4)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def blocks(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Each entry for its share of neighbours."""
    return np.repeat(array, count // array.shape[axis], axis)


def modulo(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    """The entries one after another, again and again."""
    times = [1] * array.ndim
    times[axis] = count // array.shape[axis]
    return np.tile(array, times)


def product(w, x):
    return tp.mul_mat(w, x)


def outer(a, b):
    return tp.out_prod(a, b)


def attention_to(k, q):
    return tp.flash_attn_ext(q, k, k, scale=0.5)


def attention_through(mask, q):
    return tp.flash_attn_ext(q, q, q, mask, scale=0.5)


def masked(mask, x):
    return tp.soft_max(x, mask)


def added(b, a):
    return tp.add(a, b)


RULES = {
    "mul_mat, batches of w": (product, (2, 1, 3, 8), (4, 6, 5, 8), blocks),
    "out_prod, batches of a": (outer, (2, 1, 3, 8), (4, 6, 3, 5), blocks),
    "flash_attn_ext, heads of k and v": (attention_to, (2, 2, 7, 8), (4, 6, 3, 8), blocks),
    "flash_attn_ext, mask": (attention_through, (2, 3, 3, 3), (4, 6, 3, 8), modulo),
    "soft_max, mask": (masked, (2, 3, 5, 8), (4, 6, 5, 8), modulo),
    "add, second source": (added, (2, 3, 5, 4), (4, 6, 5, 8), modulo),
}


@pytest.mark.parametrize("rule", RULES)
def test_source_repeats_over_dimensions_2_and_3_as_its_docstring_says(rule: str) -> None:
    build, small_shape, large_shape, repeated = RULES[rule]
    few, large = numbers(*small_shape), numbers(*large_shape)
    many = repeated(repeated(few, 0, large_shape[0]), 1, large_shape[1])
    small, whole, x = (tp.input("t", t.shape, tp.F32) for t in (few, many, large))
    by_rule, by_hand = build(small, x), build(whole, x)
    values = {small: few, whole: many, x: large}

    with CPUDevice("cpu:0") as device, device.open() as backend:
        found, wanted = (
            run(backend, node, {t: values[t] for t in node.sources}) for node in (by_rule, by_hand)
        )

    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_ids_of_set_rows_repeat_modulo_over_dimensions_2_and_3_of_rows() -> None:
    ids, rows = np.array([[[0, 3]], [[2, 1]]], np.int32), numbers(2, 4, 2, 8)
    table, new, named = (
        tp.input("table", (2, 4, 5, 8), tp.F32),
        tp.input("rows", rows.shape, tp.F32),
        tp.input("ids", (1, 2, 2), tp.I32),
    )
    wanted = np.zeros((2, 4, 5, 8), np.float32)
    for b, a, i in np.ndindex(2, 4, 2):
        wanted[b, a, ids.reshape(1, 2, 2)[b % 1, a % 2, i]] = rows[b, a, i]
    values = {table: np.zeros_like(wanted), new: rows, named: ids.reshape(1, 2, 2)}

    with CPUDevice("cpu:0") as device, device.open() as backend:
        found = run(backend, tp.set_rows(table, new, named), values)

    np.testing.assert_array_equal(found, wanted)


WINDOWS = {
    "later": (slice(2, 6), slice(0, 4), True),
    "earlier": (slice(0, 4), slice(2, 6), True),
    "itself": (slice(1, 5), slice(1, 5), False),
    "apart": (slice(0, 4), slice(4, 8), False),
}


@pytest.mark.parametrize("window", WINDOWS)
def test_cpy_copies_a_source_first_that_lies_in_part_over_its_target(window: str) -> None:
    source, target, copied = WINDOWS[window]
    x, data = tp.input("x", (8, 3), tp.F32), numbers(8, 3)
    wanted = data.copy()
    wanted[target] = data[source]
    node = tp.cpy(x[source], x[target])
    graph = tp.Graph([node, x[:]])

    memory = reference.execute(graph, {x: data})

    assert [n.op for n in graph.nodes if not n.is_view] == (["cont"] if copied else []) + ["cpy"]
    np.testing.assert_array_equal(memory.value(x).reshape(8, 3), wanted.astype(np.float64))


def test_set_rows_copies_rows_first_that_lie_in_its_table() -> None:
    table, ids = tp.input("table", (8, 3), tp.F32), tp.input("ids", (4,), tp.I32)
    data = numbers(8, 3)
    node = tp.set_rows(table, table[:4], ids)

    memory = reference.execute(tp.Graph(node), {table: data, ids: [1, 2, 3, 4]})

    wanted = data.copy()
    wanted[1:5] = data[:4]
    np.testing.assert_array_equal(memory.value(table).reshape(8, 3), wanted.astype(np.float64))


def test_optimizer_copies_a_gradient_first_that_lies_in_its_weights() -> None:
    memory = tp.input("memory", (6,), tp.F32)
    settings = tp.input("settings", (2,), tp.F32)
    step = tp.opt_step_sgd(memory[1:5], memory[:4], settings)

    done = reference.execute(
        tp.Graph(step), {memory: np.arange(6, dtype=np.float32), settings: [1.0, 0.0]}
    )

    assert done.value(step).ravel().tolist() == [1, 1, 1, 1]


def test_optimizer_refuses_weights_over_their_moments() -> None:
    memory = tp.input("memory", (6,), tp.F32)
    grad, settings = tp.input("grad", (4,), tp.F32), tp.input("settings", (7,), tp.F32)

    with pytest.raises(tp.ShapeError, match="x and m overlap; give each memory of its own"):
        tp.opt_step_adamw(memory[:4], grad, memory[1:5], grad + 1, settings)


def test_set_rows_may_permute_the_rows_of_its_table() -> None:
    table, ids = tp.input("table", (4, 3), tp.F32), tp.input("ids", (4,), tp.I32)
    data = numbers(4, 3)

    with CPUDevice("cpu:0") as device, device.open() as backend:
        found = run(backend, tp.set_rows(table, table, ids), {table: data, ids: [1, 2, 3, 0]})

    np.testing.assert_array_equal(found, data[[3, 0, 1, 2]])


def test_in_place_reads_other_views_of_its_memory_as_they_were() -> None:
    x, data = tp.input("x", (3, 3), tp.F32), numbers(3, 3)
    node = tp.ops.in_place(x + x.T)

    memory = reference.execute(tp.Graph(node), {x: data})

    assert [t.op for t in node.operands if t is not None] == ["none", "cont"]
    np.testing.assert_allclose(memory.value(x).reshape(3, 3), data + data.T, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda x, ids: tp.apply(tp.OPS["cpy"], x[1:5], x[:4]), "x and target overlap"),
        (
            lambda x, ids: tp.apply(tp.OPS["set_rows"], x, x[:4], ids),
            "rows and table overlap",
        ),
    ],
    ids=["cpy", "set_rows"],
)
def test_write_that_reads_in_part_what_it_writes_is_no_node(build, said: str) -> None:
    with pytest.raises(tp.ShapeError, match=said):
        build(tp.input("x", (8, 3), tp.F32), tp.input("ids", (4,), tp.I32))
