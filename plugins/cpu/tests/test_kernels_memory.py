"""Where results may lie: over a source, in tiles, in strides, with rows of no length."""

import itertools

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug.ops import OPS, replaceable_sources
from tensorplug_cpu import kernels, reference, tiles
from tensorplug_cpu.kernels import KERNELS
from tensorplug_cpu.kernels.unary import FUNCTIONS
from tensorplug_cpu.threads import Team
from tensorplug_testing.running import run

RNG = np.random.default_rng(11)
LARGE = tiles.PARALLEL + 7

A, B = leaf("a", (3, 5, 16), tp.F32), leaf("b", (3, 5, 16), tp.F32)
IDS, TABLE = leaf("ids", (3, 5), tp.I32), leaf("table", (4, 16), tp.F32)
AT, MASK = leaf("at", (3,), tp.I32), leaf("mask", (5, 16), tp.F32)
VALUES = {
    A: RNG.normal(size=A.shape).astype(np.float32),
    B: RNG.uniform(1, 2, size=B.shape).astype(np.float32),
    IDS: RNG.integers(0, 4, IDS.shape).astype(np.int32),
    TABLE: RNG.normal(size=TABLE.shape).astype(np.float32),
    AT: np.array([5, 0, 9], np.int32),
    MASK: RNG.normal(size=MASK.shape).astype(np.float32),
}
KEYS = leaf("keys", (3, 1, 5, 4), tp.F32)
VALUES[KEYS] = RNG.normal(size=KEYS.shape).astype(np.float32)
WINDOW = {"strides": (320, 64, 4), "offset": 64}
IN_PLACE = [
    *(tp.unary(name, A) for name in FUNCTIONS),
    tp.xielu(A, alpha_n=0.5, alpha_p=0.5, beta=0.5, eps=-1e-6),
    *(getattr(tp, name)(A, B) for name in ("add", "sub", "mul", "div")),
    *(getattr(tp, name)(A, tp.reshape(MASK, (1, 5, 16))) for name in ("add", "mul")),
    tp.add_id(A, TABLE, IDS),
    tp.scale(A, 2.0, bias=1.0),
    tp.clamp(A, -0.5, 0.5),
    tp.leaky_relu(A, slope=0.1),
    tp.fill(A, 3.0),
    *(getattr(tp, name)(A) for name in ("norm", "rms_norm", "l2_norm")),
    tp.soft_max(A, MASK, scale=0.5),
    *(getattr(tp, name)(A, B) for name in ("silu_back", "rms_norm_back", "soft_max_back")),
    *(tp.rope_back(A, AT, dims=8, mode=mode) for mode in ("normal", "neox")),
    tp.diag_mask_inf(A, n_past=2),
    tp.diag_mask_zero(A, n_past=2),
    tp.add1(A, tp.reshape(MASK[:1, :1], (1,))),
    tp.add_rel_pos(A, KEYS, KEYS),
    *(tp.rope(A, AT, dims=8, mode=mode) for mode in ("normal", "neox")),
    tp.acc(A, tp.reshape(MASK[:4], (1, 4, 16)), **WINDOW),
    tp.set(A, tp.reshape(MASK[:4], (1, 4, 16)), **WINDOW),
]


def test_every_op_that_computes_has_a_kernel():
    computing = {name for name, op in OPS.items() if not op.is_view and "." not in name}

    assert computing <= set(KERNELS)


def test_the_table_of_aliased_cases_names_every_op_that_may_be_laid_over_a_source():
    possible = {name for name, op in OPS.items() if op.in_place and "." not in name}

    assert {node.op for node in IN_PLACE} == possible


@pytest.mark.parametrize("node", IN_PLACE, ids=lambda node: node.op)
def test_result_laid_over_its_source_is_the_same(backend, node):
    values = {t: v for t, v in VALUES.items() if t in tp.Graph(node).leafs}
    apart = run(backend, node, values)
    under = [source for source in replaceable_sources(node) if source.same_layout(node)]

    found = [run(backend, node, values, {node: source}) for source in under]

    assert found
    for over in found:
        # Some NumPy versions compute the last bit of expm1 in another way where arrays overlap.
        np.testing.assert_allclose(over, apart, rtol=1e-6)


@pytest.mark.parametrize("dtype", [tp.F16, tp.BF16], ids=str)
def test_half_precision_result_laid_over_its_source_is_the_same(backend, dtype):
    x = leaf("x", (40, 1000), dtype)
    stored = RNG.normal(size=(40, 1000)).astype(np.float16).view(dtype.storage)
    node = tp.gelu(x)

    over = run(backend, node, {x: stored}, {node: x})

    np.testing.assert_array_equal(over, run(backend, node, {x: stored}))


# --- tiles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(LARGE,), (1, LARGE), (LARGE, 1), (7, LARGE // 7), (300, 9, 65), (2, 3, 700, 41)]
)
@pytest.mark.parametrize("dtype", [tp.F32, tp.F16], ids=str)
def test_large_tensors_are_computed_whole(backend, shape, dtype):
    x = leaf("x", shape, dtype)
    data = RNG.uniform(-1, 1, size=shape).astype(dtype.storage)

    found = run(backend, tp.sqr(x), {x: data})

    np.testing.assert_array_equal(found, np.square(data.astype(np.float32)).astype(data.dtype))


@pytest.mark.parametrize("shape", [(1,), (3, 1), (300, 1), (1, 700), (5, 1, 700)])
def test_large_tensors_repeat_small_ones(backend, shape):
    x, y = leaf("x", (5, 300, 700), tp.F32), leaf("y", shape, tp.F32)
    data = RNG.normal(size=x.shape).astype(np.float32)
    small = RNG.normal(size=shape).astype(np.float32)

    found = run(backend, tp.mul(x, y), {x: data, y: small})

    repeats = [n // m for n, m in zip(data.shape, (1,) * (3 - len(shape)) + shape, strict=True)]
    np.testing.assert_array_equal(found, data * np.tile(small, repeats))


@pytest.mark.parametrize("rows", [1, 31, 400])
def test_rows_longer_than_a_tile_stay_whole(backend, rows):
    x = leaf("x", (rows, tiles.TILE // 30), tp.F32)
    data = RNG.normal(size=x.shape).astype(np.float32)

    found = run(backend, tp.soft_max(x), {x: data})

    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_tiles_cover_every_element_once():
    for shape in [(7, 5, 3), (1, 100), (100, 1), (64,)]:
        for limit in (1, 4, 15, 1000):
            for whole in range(2):
                seen = np.zeros(shape, int)

                for piece in tiles.tiles(shape, limit, whole):
                    seen[piece] += 1

                assert (seen == 1).all()


LONG, WIDE = leaf("long", (300, 1024), tp.F32), leaf("wide", (700, 512), tp.F16)
FEW, SPOTS = leaf("few", (2, 512), tp.F32), leaf("spots", (300,), tp.I32)
HEADS = tp.reshape(LONG, (300, 16, 64))
BY_HEAD = tp.permute(HEADS, (1, 0, 2))


@pytest.mark.parametrize(
    "node",
    [
        tp.gelu_erf(LONG),
        tp.cast(tp.silu(tp.cast(LONG, tp.F16)), tp.F32),
        tp.swiglu(LONG),
        tp.norm(LONG),
        tp.soft_max(tp.concat(LONG, LONG, axis=1)),
        tp.argsort(LONG, descending=True),
        tp.rope(HEADS, SPOTS, dims=64, mode="neox"),
        tp.mul_mat(WIDE, FEW),
        tp.mul_mat(WIDE, tp.reshape(LONG, (600, 512))),
        tp.flash_attn_ext(BY_HEAD, BY_HEAD, BY_HEAD, scale=0.1),
    ],
    ids=lambda node: node.op,
)
def test_threads_do_not_disturb_each_other(device, monkeypatch, node):
    drawn = {t: RNG.normal(size=t.shape).astype(t.dtype.storage) for t in (LONG, WIDE, FEW)}
    drawn[SPOTS] = np.arange(300, dtype=np.int32)
    values = {t: v for t, v in drawn.items() if t in tp.Graph(node).leafs}
    lanes_seen = []

    def by_turns(team, steps):
        """All lanes at once, a step of each in turn: what they share is overwritten for sure."""
        lanes = [step.args[0] for step in steps]
        lanes_seen.append(len(lanes))
        for turn in itertools.zip_longest(*lanes, fillvalue=lambda: None):
            for step in turn:
                step()

    with device.open(threads=1) as alone, device.open(threads=3) as backend:
        wanted = run(alone, node, values)
        monkeypatch.setattr(Team, "run", by_turns)

        found = run(backend, node, values)

    assert set(lanes_seen) == {3}
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


# --- strides and empty rows -----------------------------------------------------------------

NODES_OF_ONE = [
    tp.silu,
    tp.rms_norm,
    tp.norm,
    tp.soft_max,
    tp.cumsum,
    tp.sum_rows,
    lambda x: tp.mean(x, -1, keepdims=True),
    tp.argsort,
    tp.sum,
    tp.cont,
    lambda x: tp.cast(x, tp.F16),
    lambda x: tp.top_k(x, 2),
    lambda x: tp.repeat(x, tuple(2 * n for n in x.shape)),
    tp.swiglu,
    lambda x: tp.mul_mat(tp.cont(x), x),
    lambda x: tp.flash_attn_ext(x, tp.cont(x), tp.cont(x), scale=1.0),
]


@pytest.mark.parametrize("make", NODES_OF_ONE)
@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.mT,
        lambda x: tp.permute(x, (2, 1, 0)),
        lambda x: x[::2, :, 1:5],
        lambda x: x[:, ::2, ::2],
    ],
    ids=["rows and columns", "first and last", "part", "every second"],
)
def test_strided_sources_give_what_their_copies_give(backend, make, look):
    x = leaf("x", (6, 4, 8), tp.F32)
    data = RNG.normal(size=x.shape).astype(np.float32)
    seen = look(x)
    plain = leaf("plain", seen.shape, tp.F32)
    copied = run(backend, tp.cont(seen), {x: data})

    found = run(backend, make(seen), {x: data})

    wanted = run(backend, make(plain), {plain: copied})
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (tp.sum_rows(leaf("x", (3, 0), tp.F32)), [[0], [0], [0]]),
        (tp.mean(leaf("x", (2, 0), tp.F32), -1), [np.nan, np.nan]),
        (tp.sum(leaf("x", (3, 0), tp.F32)), 0),
        (tp.argmax(leaf("x", (2, 0), tp.F32), -1), [0, 0]),
    ],
    ids=lambda value: value.op if isinstance(value, tp.Tensor) else "",
)
def test_rows_of_no_length_have_a_value(backend, node, wanted):
    values = {t: np.empty(t.shape, np.float32) for t in tp.Graph(node).leafs}

    np.testing.assert_array_equal(run(backend, node, values), wanted)


def test_families_of_kernels_are_those_of_the_reference():
    ours, theirs = (
        {module.__name__.rsplit(".", 1)[1] for module in package.FAMILIES}
        for package in (kernels, reference)
    )

    assert ours == theirs
