"""Which ops have kernels, and sizes and ids at which these change their ways; against NumPy."""

import re
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.ops.unary import UNARY
from tensorplug_native.program import Join, Map
from tensorplug_native.rules import RULES
from tensorplug_native.rules.common import WRITABLE
from tensorplug_testing.running import bind, run

from .streams import CAST, numbers

README = Path(__file__).parents[1] / "README.md"
BLOCKS = sorted((t for t in CAST if t.is_block), key=lambda t: t.id)
WRITTEN = sorted((t for t in WRITABLE if t.is_block), key=lambda t: t.id)


def leaf(name, *shape, dtype=tp.F32):
    return tp.input(name, shape, dtype)


def is_program(device, backend, node):
    """Whether the node, the last of its graph, is one that the library computes."""
    graph = tp.Graph([], effects=[node]) if node.writes else tp.Graph(node)
    with backend.plan(tp.Part.of(graph, bind(device, graph, {}))) as plan:
        return plan._stretches[-1].program is not None


def test_readme_names_the_ops_that_have_kernels():
    section = README.read_text().split("## What it computes")[1].split("\n## ")[0]
    first = "".join(line.split("|")[1] for line in section.splitlines() if "|" in line)

    assert sorted(re.findall(r"`(\w+)`", first)) == sorted(RULES)


def test_functions_of_one_element_are_all_compiled():
    assert UNARY.keys() <= RULES.keys()


# --- experts --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tp.F32, tp.BF16, *BLOCKS], ids=str)
@pytest.mark.parametrize(
    ("tokens", "used", "slots"), [(1, 4, 1), (1, 2, 2), (2, 3, 1), (7, 4, 4), (60, 2, 1)]
)
def test_experts_give_what_they_give_in_numpy(numpy, device, three, dtype, tokens, used, slots):
    w, x = leaf("w", 6, 37, 256), leaf("x", tokens, slots, 256)
    ids = leaf("ids", tokens, used, dtype=tp.I32)
    node = tp.mul_mat_id(tp.cast(w, dtype) if dtype is not tp.F32 else w, x, ids)
    values = {w: numbers(6, 37, 256), x: numbers(tokens, slots, 256)}
    values[ids] = np.random.default_rng(tokens).integers(0, 6, (tokens, used), dtype=np.int32)

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-4)
    assert is_program(device, three, node)


def test_experts_read_rows_of_x_in_any_layout(numpy, three):
    w, x = leaf("w", 3, 8, 64), leaf("x", 5, 64, 2)
    ids = leaf("ids", 5, 4, dtype=tp.I32)
    node = tp.mul_mat_id(w, tp.transpose(tp.cast(x, tp.F16)), ids)
    values = {w: numbers(3, 8, 64), x: numbers(5, 64, 2), ids: np.arange(20).reshape(5, 4) % 3}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 40])
def test_experts_may_round_x_to_eight_bits(numpy, device, rows):
    w, x = leaf("w", 3, 64, 256), leaf("x", rows, 1, 256)
    ids = leaf("ids", rows, 2, dtype=tp.I32)
    node = tp.mul_mat_id(tp.cast(w, tp.Q8_0), x, ids)
    values = {w: numbers(3, 64, 256), x: numbers(rows, 1, 256)}
    values[ids] = np.random.default_rng(1).integers(0, 3, (rows, 2), dtype=np.int32)

    with device.open(threads=2, activations="int8") as rounding:
        found = run(rounding, node, values)

    wanted = run(numpy, node, values)
    assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)


@pytest.mark.parametrize("wrong", [-2, 3, 2**31 - 1])
@pytest.mark.parametrize("op", ["mul_mat_id", "add_id"])
def test_an_expert_that_is_not_there_is_named_and_nothing_is_written(device, backend, op, wrong):
    x, ids = leaf("x", 2, 2, 32), leaf("ids", 2, 2, dtype=tp.I32)
    table = leaf("w", 3, 32, 32) if op == "mul_mat_id" else leaf("b", 3, 32)
    node = tp.mul_mat_id(table, x, ids) if op == "mul_mat_id" else tp.add_id(x, table, ids)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {ids: np.array([[0, 2], [wrong, 1]], np.int32)})

    with pytest.raises(tp.GraphError) as caught:
        backend.compute(tp.Part.of(graph, bindings))

    assert str(caught.value) == (
        f"{node}: ids {ids} holds {wrong} at [1, 0], which names no row; rows are 0 to 2, and -1 "
        "stands for none"
    )


# --- element by element ---------------------------------------------------------------------

EDGES = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-38, -1e38, 3, -3], np.float32)


@pytest.mark.parametrize("function", Map, ids=lambda function: function.name)
def test_functions_give_what_they_give_in_numpy(numpy, device, three, function):
    params = {
        Map.XIELU: {"alpha_n": 0.8, "alpha_p": 0.7, "beta": 0.5, "eps": -1e-6},
        Map.SCALE: {"scale": 0.3, "bias": 2.0},
        Map.CLAMP: {"min": -1.0, "max": 2.0},
        Map.LEAKY_RELU: {"slope": 0.2},
        Map.FILL: {"value": 4.0},
    }
    x = leaf("x", 5, 1027)
    node = tp.apply(tp.OPS[function.name.lower()], x, **params.get(function, {}))
    data = 5 * numbers(5, 1027)
    data[:, : len(EDGES)] = EDGES

    found = run(three, node, {x: data})

    np.testing.assert_allclose(found, run(numpy, node, {x: data}), rtol=2e-6, atol=1e-6)
    assert is_program(device, three, node)


@pytest.mark.parametrize("types", [(tp.F32, tp.F32), (tp.F16, tp.F32), (tp.BF16, tp.F16)], ids=str)
@pytest.mark.parametrize("other", [(1, 1), (3, 1), (1, 1040), (3, 26), (1, 2), (3, 520)], ids=str)
@pytest.mark.parametrize("function", list(Join)[:4], ids=lambda function: function.name)
def test_the_second_tensor_repeats_across_tiles(numpy, three, function, other, types):
    a, b = leaf("a", 6, 1040), leaf("b", *other)
    narrow = [t if d is tp.F32 else tp.cast(t, d) for t, d in zip((a, b), types, strict=True)]
    node = tp.cast(tp.apply(tp.OPS[function.name.lower()], *narrow), tp.F32)
    values = {a: numbers(6, 1040), b: 2 + abs(numbers(*other))}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=2**-7)


# --- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["norm", "rms_norm", "l2_norm", "sum_rows", "mean", "argmax"])
@pytest.mark.parametrize("row", [1, 7, 4097, 70001])
def test_rows_of_any_length_are_normalised_and_reduced(numpy, device, three, op, row):
    x = leaf("x", 3, row)
    node = tp.apply(tp.OPS[op], x)
    data = 10 + numbers(3, row)

    found = run(three, node, {x: data})

    np.testing.assert_allclose(found, run(numpy, node, {x: data}), rtol=1e-4, atol=1e-5)
    assert is_program(device, three, node)


@pytest.mark.parametrize("k", [1, 8, 100])
def test_the_largest_of_a_row_are_found_with_nan_last(three, k):
    x = leaf("x", 5, 100)
    data = np.round(3 * numbers(5, 100))
    data[:, ::7] = np.nan
    data[0] = np.nan

    found = run(three, tp.top_k(x, k), {x: data})

    picked = np.take_along_axis(data, found, 1)
    np.testing.assert_array_equal(-np.sort(-picked), -np.sort(-data)[:, :k])


# --- copies ---------------------------------------------------------------------------------


def awkward(rows, row):
    """Values with ties, equal values, zeros, and sizes far apart."""
    data = numbers(rows, row)
    data[0] = np.round(data[0] * 4) / 4
    data[1] = 0
    data[2] = 3.5
    data[3] *= 1e-30
    data[4, ::2] *= 1e4
    return data


def written_blocks(backend, x, table, ids, data):
    """The bytes of `x` cast to the type of `table`, and of `table` with rows of `x` in it."""
    cast = tp.cast(x, table.dtype)
    graph = tp.Graph(cast, effects=[tp.set_rows(table, x, ids)])
    values = {x: data, ids: np.array([5, 0, 8, 1, 3, 2, 7])}
    values[table] = np.zeros((9, table.dtype.row_size(data.shape[1])), np.uint8)
    bindings = bind(backend.device, graph, values)
    backend.compute(tp.Part.of(graph, bindings))
    return [transfer.read(t, bindings) for t in (cast, table)]


@pytest.mark.parametrize("dtype", WRITTEN, ids=str)
def test_blocks_are_written_as_numpy_writes_them(numpy, three, dtype):
    row = 33 * dtype.block
    x, table = leaf("x", 7, row), leaf("table", 9, row, dtype=dtype)
    ids = leaf("ids", 7, dtype=tp.I64)
    data = awkward(7, row)
    found, wanted = (written_blocks(backend, x, table, ids, data) for backend in (three, numpy))

    for native, plain in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(native, plain)


@pytest.mark.parametrize("source", [tp.F32, tp.F16, tp.BF16, *BLOCKS], ids=str)
@pytest.mark.parametrize("target", [tp.F32, tp.F16, tp.BF16, tp.Q8_0], ids=str)
def test_every_readable_type_is_copied_to_numbers_and_blocks(numpy, three, source, target):
    x = leaf("x", 3, 5, 768)
    node = tp.cast(tp.cast(tp.cast(x, source), target), tp.F32)
    data = numbers(3, 5, 768)

    found = run(three, node, {x: data})

    np.testing.assert_array_equal(found, run(numpy, node, {x: data}))


@pytest.mark.parametrize("dtype", [tp.F32, tp.I32, tp.I8, tp.F64], ids=str)
def test_numbers_of_any_type_are_joined_and_repeated(numpy, device, three, dtype):
    a, b = leaf("a", 3, 4, 5, dtype=dtype), leaf("b", 3, 2, 5, dtype=dtype)
    joined = tp.concat(a, b, axis=-2)
    node = tp.cont(tp.transpose(tp.repeat(joined, (3, 12, 10))))
    values = {t: np.arange(np.prod(t.shape)).reshape(t.shape).astype(dtype.numpy) for t in (a, b)}

    found = run(three, node, values)

    np.testing.assert_array_equal(found, run(numpy, node, values))
    assert is_program(device, three, node)


# --- windows --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16], ids=str)
@pytest.mark.parametrize(
    ("channels", "filters", "params"),
    [
        (3, 9, {}),
        (2, 3, {"s0": 2, "s1": 3, "p0": 1, "p1": 4, "d0": 3, "d1": 2}),
        (48, 40, {"p0": 1, "p1": 1}),
    ],
    ids=["plain", "sliding", "pieces"],
)
def test_images_are_convolved(numpy, device, three, channels, filters, params, dtype):
    kernel, x = leaf("k", filters, channels, 3, 4), leaf("x", 2, channels, 61, 67)
    node = tp.apply(tp.OPS["conv_2d"], tp.cast(kernel, dtype), x, **params)
    values = {kernel: numbers(*kernel.shape), x: numbers(*x.shape)}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-4)
    assert is_program(device, three, node)


@pytest.mark.parametrize(("step", "pad", "dilation"), [(1, 0, 1), (3, 4, 1), (2, 1, 5)])
@pytest.mark.parametrize("filters", [1, 300])
def test_signals_are_spread(numpy, device, three, filters, step, pad, dilation):
    kernel, x = leaf("k", 7, filters, 8), leaf("x", 7, 301)
    node = tp.conv_transpose_1d(kernel, x, stride=step, padding=pad, dilation=dilation)
    values = {kernel: numbers(*kernel.shape), x: numbers(*x.shape)}

    found = run(three, node, values)

    np.testing.assert_allclose(found, run(numpy, node, values), rtol=1e-4, atol=1e-4)
    assert is_program(device, three, node)
