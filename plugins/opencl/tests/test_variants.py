"""Every way to multiply matrices, on every driver: all types, odd sizes, experts, layouts."""

from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Plan, Rounding
from tensorplug.dtypes import Q2_K, Q4_1, Q5_0, Q5_K
from tensorplug.ops.matmul import WEIGHTS
from tensorplug_cpu.reference.blocks import decode_rows
from tensorplug_opencl.kernels import KERNELS
from tensorplug_opencl.kernels.matmul import operands_of
from tensorplug_opencl.kernels.tiled import COLUMNS, TILES
from tensorplug_opencl.kernels.variants import variants
from tensorplug_opencl.kernels.wide import STREAMED
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower

TYPES = sorted(set(WEIGHTS) - {tp.F64}, key=lambda t: t.id)
OFTEN = {tp.Q4_0, Q2_K, tp.Q6_K}
BLOCKS = [
    pytest.param(t, marks=() if t in OFTEN else pytest.mark.slow) for t in TYPES if t.is_block
]
MATVECS = ("wide", "subgroup", "group")
SOME = (tp.F32, tp.F16, tp.Q4_0, tp.Q6_K)
ROUNDED = ("int8", "wide_int8")
"""Variants that round `x` to bytes, with a scale for each 16 elements."""
WORDS = {tp.Q4_K: 32, Q5_K: 32, tp.Q6_K: 64}
"""How many elements of a block lie in low codes before those of high codes; 16 for other types."""
NEAR = 2e-5
"""Error of sums of floats, as a share of the sum of the magnitudes."""


def choose(device, variant, node) -> None:
    """Make the device compute `node` by `variant`; skips where it cannot."""
    facts = replace(device.facts, variant=variant, int8_activations=True)
    wide = replace(facts, wide=variant in ("wide", "wide_int8"))
    if variant not in variants(operands_of(node), wide):
        pytest.skip(f"{device.description} has no {variant}")
    device.facts = wide


def stored_and_values(rng, dtype, *shape):
    """What lies in memory, and the numbers it stands for."""
    if not dtype.is_block:
        values = rng.standard_normal(shape).astype(np.float32)
        stored = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is tp.BF16 else None
        stored = values.astype(dtype.storage) if stored is None else stored
        back = (stored.astype(np.uint32) << 16).view(np.float32) if dtype is tp.BF16 else stored
        return stored, back.astype(np.float64)
    # Without the highest bit of their exponents, scales are numbers below 2.
    sizes = (*shape[:-1], dtype.row_size(shape[-1]))
    stored = rng.integers(0, 256, sizes, np.uint8) & np.uint8(0xBF)
    rows = decode_rows(dtype, stored.reshape(-1, sizes[-1]))
    return stored, rows.reshape(shape).astype(np.float64)


def check(got, w, x, near=NEAR) -> None:
    """Compare `x @ w.T` with `got`, which may be off by a share of the sum of magnitudes."""
    wanted, size = x @ w.swapaxes(-1, -2), np.abs(x) @ np.abs(w).swapaxes(-1, -2)
    far = np.abs(got - wanted) > near * size + 1e-30
    assert not far.any(), (got[far][:3], wanted[far][:3], np.argwhere(far)[:3])


def multiplied(device, stream, variant, dtype, stored, x):
    """`x @ w.T` as a variant computes it; `stored` is what lies in memory of w."""
    a = tp.input("w", (*stored.shape[:-1], x.shape[-1]), dtype)
    b = tp.input("x", x.shape, tp.F32)
    y = tp.mul_mat(a, b)
    choose(device, variant, y)
    with tp.Scheduler([stream]).schedule(y) as run:
        return run.run({a: stored, b: x})[y]


def product(device, stream, variant, dtype, n, m, k):
    """`check` of one product."""
    rng = np.random.default_rng(n + m + k)
    stored, w = stored_and_values(rng, dtype, n, k)
    x = rng.standard_normal((m, k)).astype(np.float32)

    got = multiplied(device, stream, variant, dtype, stored, x)

    exact = x.astype(np.float64)
    if variant == "wide_int8" and m == 1:
        check(got, w, rounded_in_pairs(x, WORDS.get(dtype, 16)))
    else:
        check(got, w, rounded(x) if variant in ROUNDED else exact)


def rounded(x):
    """`x` as the kernels round it to bytes: a scale for each 16 elements."""
    return bytes_of(x.reshape(*x.shape[:-1], -1, 16), -1).reshape(x.shape)


def rounded_in_pairs(x, apart):
    """The same where 16 elements and those `apart` elements behind have one scale."""
    parts = x.reshape(-1, 2, apart // 16, 16)
    return bytes_of(parts, (1, 3)).reshape(x.shape)


def bytes_of(parts, axes):
    """Numbers as bytes times the scale that those along `axes` share."""
    largest = np.abs(parts).max(axes, keepdims=True)
    codes = np.rint(parts * (np.float32(127) / largest)).astype(np.float64)
    return codes * (largest / np.float32(127))


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("variant", ["subgroup", "group"])
def test_teams_of_lanes_multiply_every_type(device, stream, variant, dtype):
    product(device, stream, variant, dtype, 7, 3, 768 if dtype.is_block else 259)


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda t: t.name)
def test_bytes_times_bytes_is_exact_but_for_the_rounding_of_x(device, stream, dtype):
    product(device, stream, "int8", dtype, 7, 3, 768)


@pytest.mark.parametrize("dtype", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("n", [1, 67])
@pytest.mark.parametrize("variant", [*MATVECS, "int8"])
def test_few_rows_of_odd_sizes(device, stream, variant, dtype, n, m):
    product(device, stream, variant, dtype, n, m, 256)


@pytest.mark.parametrize("dtype", sorted(STREAMED, key=lambda t: t.id), ids=lambda t: t.name)
@pytest.mark.parametrize(
    "length", [32, 6144 + 96, 6144 + 192], ids=["a block", "three blocks over", "two over"]
)
@pytest.mark.parametrize("variant", ["wide", "wide_int8"])
def test_one_row_of_any_length(device, stream, variant, dtype, length):
    product(device, stream, variant, dtype, 5, 1, -(-length // dtype.block) * dtype.block)


@pytest.mark.parametrize("dtype", sorted(STREAMED, key=lambda t: t.id), ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("n", "m", "length"),
    [(3, 9, 32), pytest.param(67, 41, 6144 + 96, marks=pytest.mark.long)],
    ids=["less than a panel", "many panels"],
)
def test_many_rows_rounded_to_bytes_of_odd_sizes(device, stream, dtype, n, m, length):
    product(device, stream, "wide_int8", dtype, n, m, -(-length // dtype.block) * dtype.block)


@pytest.mark.parametrize("guess", [8, 32, 64])
@pytest.mark.parametrize("variant", ["subgroup", "int8"])
def test_sub_groups_may_have_another_size_than_was_guessed(device, stream, variant, guess):
    known = device.facts.subgroup and guess
    device.facts = replace(device.facts, subgroup=known, subgroup_required=False)
    product(device, stream, variant, tp.Q4_0, 67, 2, 256)


@pytest.mark.parametrize("dtype", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("variant", TILES)
def test_tiles_of_odd_sizes(device, stream, variant, dtype):
    product(device, stream, variant, dtype, 301, 141, 256)


@pytest.mark.parametrize("variant", [*MATVECS, "int8"])
def test_each_matrix_of_weights_serves_several(device, stream, variant):
    rng = np.random.default_rng(0)
    stored, w = stored_and_values(rng, tp.Q4_K, 2, 5, 256)
    x = rng.standard_normal((6, 3, 256)).astype(np.float32)

    got = multiplied(device, stream, variant, tp.Q4_K, stored, x)

    exact = rounded(x) if variant == "int8" else x.astype(np.float64)
    check(got, np.repeat(w, 3, axis=0), exact)


@pytest.mark.long
@pytest.mark.parametrize("tokens", [2, 40], ids=["one by one", "sorted"])
@pytest.mark.parametrize("variant", [*MATVECS, "int8", "wide_int8", *TILES])
def test_experts(device, stream, variant, tokens):
    rng = np.random.default_rng(0)
    stored, w = stored_and_values(rng, Q5_0, 4, 71, 64)
    x = rng.standard_normal((tokens, 1, 64)).astype(np.float32)
    chosen = rng.permuted(np.tile(np.arange(4, dtype=np.int32), (tokens, 1)), axis=1)[:, :2]
    a, b = tp.input("w", (4, 71, 64), Q5_0), tp.input("x", x.shape, tp.F32)
    ids = tp.input("ids", (tokens, 2), tp.I32)
    y = tp.mul_mat_id(a, b, ids)
    choose(device, variant, y)

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({a: stored, b: x, ids: chosen})[y]

    if variant == "wide_int8" and tokens == 2:
        exact = rounded_in_pairs(x, 16)
    else:
        exact = rounded(x) if variant in ROUNDED else x.astype(np.float64)
    check(got[:, :, None], w[chosen], exact[:, :, None])


@pytest.mark.parametrize("variant", ["subgroup", "group", "int8"])
def test_products_of_the_same_rows_side_by_side(device, stream, variant):
    rng = np.random.default_rng(0)
    held = [stored_and_values(rng, tp.Q8_0, n, 96) for n in (64, 33, 1)]
    x = rng.standard_normal((1, 96)).astype(np.float32)
    b = tp.input("x", (1, 96), tp.F32)
    weights = [tp.input(f"w{i}", w.shape, tp.Q8_0) for i, (_, w) in enumerate(held)]
    ys = [tp.mul_mat(a, b) for a in weights]
    choose(device, variant, ys[0])

    with tp.Scheduler([stream]).schedule(ys) as run:
        got = run.run({b: x, **dict(zip(weights, [s for s, _ in held], strict=True))})

    exact = rounded(x) if variant == "int8" else x.astype(np.float64)
    for y, (_, w) in zip(ys, held, strict=True):
        check(got[y], w, exact)


def programs_after(device, stream, rows, prompts):
    """The number of programs after each product of `rows` rows of weights with a prompt."""
    w = stream.place("w", np.ones((rows, 64), np.float32))
    for tokens in prompts:
        x = tp.input("x", (tokens, 64), tp.F32)
        y = tp.mul_mat(w, x)
        with tp.Scheduler([stream]).schedule(y) as run:
            assert (run.run({x: np.ones((tokens, 64), np.float32)})[y] == 64).all()
        yield device.programs.count


def test_prompts_of_any_length_share_few_programs(device, stream):
    counts = list(programs_after(device, stream, 40, (1, 2, 3, 7, 33, 70, 500)))

    assert counts == [1, 2, 3, 4, 5, 5, 5]


def test_prompts_of_any_length_share_few_programs_on_gpus(device, stream):
    device.facts = replace(device.facts, wide=False)
    prompts = (1, 2, 3, 7, 9, 33, 70, 150, 300, 500)

    counts = list(programs_after(device, stream, 400, prompts))

    assert counts[3] == len(COLUMNS)
    assert counts[-1] <= len(COLUMNS) + len(TILES)


def test_rounding_to_bytes_moves_no_number_by_more_than_half_a_step(device, stream):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((16, 64)).astype(np.float32)
    x = np.float32(10.0) ** rng.integers(-20, 20, (1, 4)).repeat(16, 1) * values[:1]
    stored = np.zeros((64, 2, 34), np.uint8)
    stored[..., :2] = np.full(1, 1.0, np.float16).view(np.uint8)
    stored[np.arange(64), np.arange(64) // 32, 2 + np.arange(64) % 32] = 1

    got = multiplied(device, stream, "int8", tp.Q8_0, stored.reshape(64, -1), x)

    half_steps = np.abs(x.reshape(-1, 16)).max(1).repeat(16) / 254
    assert (np.abs(got - x) <= half_steps * (1 + 1e-5)).all()


def roundings(stream, products, values):
    """The results of products, and the sizes of the launches that round their rows to bytes."""
    with tp.Scheduler([stream]) as scheduler, scheduler.schedule(products) as run:
        results = run.run({leaf: values[leaf] for leaf in tp.Graph(products).leafs})
        found = [results[y] for y in products]
        (plan,) = (child for child in stream.children if isinstance(child, Plan))
        launches = [(launch.kernel.function_name, launch.size) for launch in plan._ready]
    return found, [size for name, size in launches if name.startswith("quantise")]


def test_rows_of_several_products_are_rounded_to_bytes_once(device, stream):
    rng = np.random.default_rng(0)
    x = tp.input("x", (3, 256), tp.F32)
    stored, matrices = zip(*(stored_and_values(rng, tp.Q8_0, n, 256) for n in (7, 40)), strict=True)
    weights = [tp.input(f"w{i}", w.shape, tp.Q8_0) for i, w in enumerate(matrices)]
    products = [tp.mul_mat(w, x) for w in weights]
    values = dict(zip(weights, stored, strict=True))
    values[x] = rng.standard_normal(x.shape).astype(np.float32)
    choose(device, "int8", products[0])

    _, alone = roundings(stream, products[:1], values)
    found, both = roundings(stream, products, values)

    assert (len(alone), alone) == (1, both)
    for y, w in zip(found, matrices, strict=True):
        check(y, w, rounded(values[x]))


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_one_row_rounded_to_bytes_that_is_not_finite_gives_nan(device, stream, odd):
    x = np.ones((1, 64), np.float32)
    x[0, 40] = odd

    got = multiplied(device, stream, "wide_int8", Q4_1, np.zeros((3, 40), np.uint8), x)

    assert np.isnan(got).all()


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("variant", "rows"), [("int8", 2), ("wide_int8", 9)])
def test_rows_rounded_to_bytes_that_are_not_finite_give_nan(device, stream, variant, rows, odd):
    x = np.ones((rows, 64), np.float32)
    x[1, 7] = odd

    got = multiplied(device, stream, variant, Q4_1, np.zeros((3, 40), np.uint8), x)

    assert np.isnan(got).all(axis=1).tolist() == [False, True, *[False] * (rows - 2)]


@pytest.mark.parametrize(
    ("precision", "kernels"), [("default", ["quantise", "row_product"]), ("f32", ["row_product"])]
)
def test_rows_of_exact_products_are_not_rounded(precision, kernels):
    w, x = tp.input("w", (8, 64), tp.Q8_0), tp.input("x", (3, 64), tp.F32)
    facts = Facts(wide=False, int8_activations=True)

    program = lower(tp.mul_mat(w, x, precision=precision), facts, KERNELS.ops)

    assert [launch.kernel.name for launch in program.launches] == kernels


@pytest.mark.parametrize(
    ("dtype", "rows", "declared"),
    [
        (tp.Q4_K, 1, Rounding.BYTES),
        (tp.Q4_K, 8, Rounding.NONE),
        (tp.Q4_K, 9, Rounding.BYTES),
        (tp.Q8_0, 1, Rounding.NONE),
    ],
)
def test_processors_declare_which_products_they_round(dtype, rows, declared):
    w, x = tp.input("w", (8, 256), dtype), tp.input("x", (rows, 256), tp.F32)
    facts = Facts(wide=True, int8_activations=True)

    assert KERNELS.rounding(tp.mul_mat(w, x), facts) is declared


def test_a_mask_of_nan_hides_no_position(stream):
    q, k = np.ones((1, 1, 32), np.float32), np.ones((1, 16, 32), np.float32)
    mask = np.full((1, 16), -np.inf, np.float32)
    mask[0, 3] = np.nan
    inputs = [tp.input(name, v.shape, tp.F32) for name, v in zip("qkm", (q, k, mask), strict=True)]
    y = tp.flash_attn_ext(inputs[0], inputs[1], inputs[1], inputs[2], scale=1.0)

    with tp.Scheduler([stream]).schedule(y) as run:
        found = run.run(dict(zip(inputs, (q, k, mask), strict=True)))[y]

    assert np.isnan(found).all()
