"""Products that round `x`: near enough, asked for by an option, refused by a node."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.blocks import decode
from tensorplug.device import Rounding
from tensorplug.dtypes import (
    IQ1_M,
    IQ2_XXS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_1,
    Q5_1,
    Q5_K,
    Q8_1,
    TQ1_0,
    TQ2_0,
)
from tensorplug_native.rules import READABLE
from tensorplug_testing.cases import LARGE, SMALL
from tensorplug_testing.cases.blocks import random_rows
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.running import run

from .streams import LEVELS

PRODUCTS = [case for case in (*SMALL, *LARGE) if case.op == "mul_mat"]
TYPES = sorted((t for t in READABLE if t.is_block), key=lambda t: t.id)
SCALES: dict[tp.DType, tuple[int, ...]] = {
    **dict.fromkeys((Q4_1, Q5_1, tp.Q4_K, Q5_K), (0, 2)),
    Q2_K: (80, 82),
    Q3_K: (108,),
    tp.Q6_K: (208,),
    MXFP4: (),
    TQ1_0: (52,),
    TQ2_0: (64,),
}
"""Where in a block an f16 scale lies, in bytes; elsewhere at its beginning."""


@pytest.fixture(scope="module", params=[level for level in LEVELS if level != "baseline"])
def rounding(device, request):
    """A stream that rounds, with uneven shares."""
    with device.open(threads=3, level=request.param, activations="int8") as stream:
        yield stream


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.id)
def test_product_is_as_near_as_the_kit_asks(case, device, rounding):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    rounding.compute(laid.bound)

    assert laid.problem(rounding.rounding(laid.built.node)) == ""


def stored(dtype, rows, k):
    """Rows of random blocks with scales that are about one hundredth."""
    rng = np.random.default_rng(3)
    if dtype in (IQ1_M, NVFP4):
        return random_rows(rng, dtype, (rows, k))
    blocks = rng.integers(0, 256, (rows * k // dtype.block, dtype.size), dtype=np.uint8)
    for at in SCALES.get(dtype, (0,)):
        blocks[:, at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if dtype is MXFP4:
        blocks[:, 0] = rng.integers(118, 122, len(blocks))
    return blocks.reshape(rows, -1)


def product(dtype, precision="default", rows=13, k=768, outputs=70):
    """A product of random blocks with `rows` rows, and its values."""
    w, x = tp.input("w", (outputs, k), dtype), tp.input("x", (rows, k), tp.F32)
    values = np.random.default_rng(4).normal(size=(rows, k)).astype(np.float32)
    node = tp.apply(tp.OPS["mul_mat"], w, x, precision=precision)
    return node, {w: stored(dtype, outputs, k), x: values}


@pytest.mark.parametrize(
    ("op", "dtype", "precision", "activations", "rounds"),
    [
        ("mul_mat", tp.Q4_0, "default", "int8", Rounding.BYTES),
        ("mul_mat", tp.Q6_K, "default", "int8", Rounding.BYTES),
        ("mul_mat_id", tp.Q4_0, "", "int8", Rounding.BYTES),
        ("mul_mat", tp.Q4_0, "f32", "int8", Rounding.NONE),
        ("mul_mat", tp.Q4_0, "default", "f32", Rounding.NONE),
        ("mul_mat", tp.F32, "default", "int8", Rounding.NONE),
        ("mul_mat", tp.F16, "f32", "int8", Rounding.NONE),
        ("mul_mat", tp.F16, "default", "f32", Rounding.NONE),
        ("mul_mat", IQ2_XXS, "default", "int8", Rounding.BYTES),
        ("mul_mat", Q8_1, "default", "int8", Rounding.NONE),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_rounding_is_declared_by_type_level_and_option(
    device, level, op, dtype, precision, activations, rounds
):
    arguments = [tp.input("w", (5, 4, 256)[-2 - (op == "mul_mat_id") :], dtype)]
    arguments.append(tp.input("x", (3, 256), tp.F32))
    if op == "mul_mat_id":
        arguments = [arguments[0], tp.input("x", (3, 1, 256), tp.F32)]
        arguments.append(tp.input("ids", (3, 2), tp.I32))
    node = tp.apply(tp.OPS[op], *arguments, **({"precision": precision} if precision else {}))

    with device.open(level=level, activations=activations) as stream:
        declared = stream.rounding(node)

    assert declared == (rounds if level != "baseline" else Rounding.NONE)


@pytest.mark.parametrize("dtype", [tp.F16, tp.BF16], ids=str)
def test_weights_in_halves_are_declared_at_levels_that_round_for_them(rounding, dtype):
    node = tp.mul_mat(tp.input("w", (5, 64), dtype), tp.input("x", (3, 64), tp.F32))
    halves = rounding.level.name in ("avx2", "avx512", "avx512_bf16", "amx")

    assert rounding.rounding(node) == (Rounding.HALVES if halves else Rounding.NONE)


@pytest.mark.parametrize("largest", [1e-30, 1.0, 1e20])
def test_one_row_times_large_weights_in_bf16_stays_finite(rounding, largest):
    """`x` in f16 has a scale, which must not make products overflow that are finite."""
    outputs, k = 5, 1024
    w, x = tp.input("w", (outputs, k), tp.BF16), tp.input("x", (1, k), tp.F32)
    weights = np.full((outputs, k), 1e34 if largest < 1 else 1e15, np.float32)
    values = np.full((1, k), largest, np.float32)
    stored = (weights.view(np.uint32) >> 16).astype(np.uint16)
    kept = (stored.astype(np.uint32) << 16).view(np.float32)

    found = run(rounding, tp.mul_mat(w, x), {w: stored, x: values})

    assert np.allclose(found, kept[:, 0].astype(float) * largest * k, rtol=2e-3)


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def as_rounded(x):
    """What is left of `x` when each 32 values share a scale and have eight bits."""
    groups = x.reshape(-1, 32)
    scales = np.abs(groups).max(1, keepdims=True) / np.float32(127)
    return (np.rint(groups / scales) * scales).reshape(x.shape)


def as_bf16(x):
    """`x` rounded to bf16, to even where it is a tie."""
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return np.where(np.isnan(x), x, rounded)


def as_declared(stream, node, values):
    """The same product of weights in f32, and its values as the declared rounding leaves them."""
    w, x = values
    decoded = decode(values[w], w.dtype, w.shape)
    wide = tp.input("w", w.shape, tp.F32)
    if stream.rounding(node) is Rounding.HALVES:
        return tp.mul_mat(wide, x), {wide: as_bf16(decoded), x: as_bf16(values[x])}
    return tp.mul_mat(wide, x), {wide: decoded, x: as_rounded(values[x])}


@pytest.mark.parametrize("outputs", [1, 7, 70])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 33])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_are_those_of_numpy_with_rounded_values(numpy, rounding, dtype, rows, outputs):
    for k in (dtype.block, 32 * 9 if dtype.block == 32 else 1280):
        node, values = product(dtype, rows=rows, k=k, outputs=outputs)

        found = run(rounding, node, values)

        assert distance(found, run(numpy, *as_declared(rounding, node, values))) < 1e-4


@pytest.mark.parametrize("dtype", [tp.Q8_0, tp.Q4_K, tp.Q6_K, IQ2_XXS], ids=str)
def test_products_of_several_matrices_with_long_rows_are_those_of_numpy(numpy, rounding, dtype):
    rows, k, outputs = 41, 5120, 150
    w, x = tp.input("w", (2, outputs, k), dtype), tp.input("x", (4, rows, k), tp.F32)
    data = np.random.default_rng(4).normal(size=(4, rows, k)).astype(np.float32)
    values = {w: stored(dtype, 2 * outputs, k).reshape(2, outputs, -1), x: data}
    node = tp.mul_mat(w, x)

    found = run(rounding, node, values)

    assert distance(found, run(numpy, *as_declared(rounding, node, values))) < 1e-4


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF, None])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_the_largest_codes_do_not_overflow(numpy, rounding, dtype, byte, rows):
    node, values = product(dtype, rows=rows, k=512, outputs=3)
    w, x = values
    codes = values[w].reshape(-1, dtype.size)
    keep = [at + i for at in SCALES.get(dtype, (0,)) for i in (0, 1)] or [0]
    if byte is None:  # any codes: as they are stored, all may be positive
        values[x][:] = 1
    else:
        codes[:, np.setdiff1d(np.arange(dtype.size), keep)] = byte
        values[x][:] = np.where(np.arange(512) % 3, 1, -1)

    found = run(rounding, node, values)

    wanted = run(numpy, *as_declared(rounding, node, values))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_any_lane_spoils_its_row_and_no_other(rounding, bad, rows):
    node, values = product(tp.Q4_0, rows=rows, k=256, outputs=33)
    _, x = values
    data, row = values[x], rows // 2
    for lane in range(32, 64):
        values[x] = data.copy()
        values[x][row, lane] = bad

        found = run(rounding, node, values)

        spoilt = np.isnan(found) if np.isnan(bad) else ~np.isfinite(found)
        assert spoilt.all(axis=1).tolist() == [i == row for i in range(rows)]
        assert np.isfinite(np.delete(found, row, axis=0)).all()


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("exponent", [-121, -122, -126, -140, -149])
def test_values_too_small_to_be_scaled_to_eight_bits_count_as_zeros(rounding, exponent, rows):
    node, values = product(tp.Q4_0, rows=rows, k=256, outputs=33)
    _, x = values
    values[x][:] = np.ldexp(np.sign(values[x]), exponent).astype(np.float32)

    found = run(rounding, node, values)

    assert not found.any()


ROUNDED_BF16 = {"avx512_bf16": as_bf16, "amx": as_bf16}
"""By level: how `x` is rounded for weights in bf16; other levels leave it as it is."""


@pytest.mark.parametrize(
    ("rows", "k"), [(33, 1), (33, 31), (33, 257), (17, 5000), (2, 2), (3, 34), (16, 5000)]
)
def test_weights_in_bf16_meet_values_rounded_to_bf16_at_most(numpy, rounding, rows, k):
    w, x = tp.input("w", (37, k), tp.BF16), tp.input("x", (rows, k), tp.F32)
    node, rng = tp.mul_mat(w, x), np.random.default_rng(5)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (w, x)}
    values[w] = (as_bf16(values[w]).view(np.uint32) >> 16).astype(np.uint16)
    seen = {w: values[w], x: ROUNDED_BF16.get(rounding.level.name, np.copy)(values[x])}

    found = run(rounding, node, values)

    assert distance(found, run(numpy, node, seen)) < 1e-5


def half_product(k, scale=1.0):
    """A product of weights in f16 with one row of x, and the values of both."""
    w, x = tp.input("w", (37, k), tp.F16), tp.input("x", (1, k), tp.F32)
    rng = np.random.default_rng(5)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (w, x)}
    values[w] = values[w].astype(np.float16)
    values[x] *= np.float32(scale)
    return tp.mul_mat(w, x), values


@pytest.mark.parametrize("k", [511, 512, 513, 5000])
def test_one_row_meets_weights_in_f16_rounded_to_f16_at_most(numpy, rounding, k):
    node, values = half_product(k)
    w, x = values
    rounds = rounding.rounding(node) is Rounding.HALVES and k >= 512
    seen = values[x].astype(np.float16).astype(np.float32) if rounds else values[x]

    found = run(rounding, node, values)

    assert distance(found, run(numpy, node, {w: values[w], x: seen})) < 1e-5


@pytest.mark.parametrize(("rows", "k"), [(17, 1), (33, 31), (33, 257), (17, 5000)])
def test_weights_in_f16_meet_many_rows_rounded_to_bf16_at_most(numpy, rounding, rows, k):
    w, x = tp.input("w", (37, k), tp.F16), tp.input("x", (rows, k), tp.F32)
    node, rng = tp.mul_mat(w, x), np.random.default_rng(6)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in (w, x)}
    values[w] = values[w].astype(np.float16)
    rounded = ROUNDED_BF16.get(rounding.level.name, np.copy)
    seen = {w: rounded(values[w].astype(np.float32)), x: rounded(values[x])}
    wide = tp.input("w", (37, k), tp.F32)

    found = run(rounding, node, values)

    wanted = run(numpy, tp.mul_mat(wide, x), {wide: seen[w], x: seen[x]})
    assert distance(found, wanted) < 1e-5


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1e-6, 1e5, 1e30])
def test_one_row_of_any_magnitude_meets_weights_in_f16(numpy, rounding, scale):
    node, values = half_product(2048, scale)

    found, wanted = run(rounding, node, values), run(numpy, node, values)

    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 37, 1024])
def test_weights_in_f16_keep_what_is_not_finite(numpy, rounding, bad, at):
    node, values = half_product(1025)
    w, x = values
    values[x][0, at] = bad
    values[x][0, at - 1] = 1e6  # finite, but not in f16
    values[w][3, at - 1 :: 8] = 0

    found = run(rounding, node, values)

    np.testing.assert_array_equal(found, run(numpy, node, values))


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 33])
@pytest.mark.parametrize("blocks", [3, 5])
@pytest.mark.parametrize("dtype", [NVFP4, Q1_0, Q2_0], ids=str)
def test_rows_of_small_blocks_may_end_within_256_codes(numpy, rounding, dtype, blocks, rows):
    node, values = product(dtype, rows=rows, k=blocks * dtype.block, outputs=7)

    found = run(rounding, node, values)

    assert distance(found, run(numpy, *as_declared(rounding, node, values))) < 1e-4


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_in_floats_are_those_of_numpy(numpy, backend, dtype, rows):
    for k in (dtype.block, 32 * 9 if dtype.block == 32 else 1280):
        node, values = product(dtype, rows=rows, k=k, outputs=7)

        assert distance(run(backend, node, values), run(numpy, node, values)) < 1e-5


def test_a_node_that_asks_for_f32_is_not_rounded(backend, rounding):
    node, values = product(tp.Q8_0, "f32")

    np.testing.assert_allclose(
        run(rounding, node, values), run(backend, node, values), rtol=1e-4, atol=1e-4
    )


def test_rounding_is_asked_for_by_one_of_two_words(device):
    with pytest.raises(tp.OptionError) as caught:
        device.open(activations="int4")

    assert str(caught.value) == ("cpu:0: option activations='int4'; choose from auto, int8, f32")
