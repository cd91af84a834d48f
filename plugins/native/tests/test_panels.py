"""Weights in panels: kept bit by bit, read by products and lookups, refused to all others."""

from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Rounding, TensorplugError, allocate
from tensorplug.device.transfer import read
from tensorplug.dtypes import Q2_K, Q3_K, Q4_0, Q4_1, Q5_0, Q5_K
from tensorplug.graph.tensor import leaf
from tensorplug_native.device import VARIABLE, NativeDevice
from tensorplug_native.program import FEW_TILED, FEW_TILED_PANELS, PANEL_ROWS
from tensorplug_native.rules.products import INT8_LEVELS
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.running import run

from .panel_cases import LOOKUPS, PRODUCTS, TYPES, width
from .streams import EACH_LEVEL, LEVELS
from .test_int8 import stored


@pytest.fixture(scope="module", params=EACH_LEVEL)
def exact(device, request):
    with device.open(threads=3, level=request.param, activations="f32") as stream:
        yield stream


@pytest.fixture(scope="module", params=EACH_LEVEL)
def rounding(device, request):
    with device.open(threads=3, level=request.param, activations="int8") as stream:
        yield stream


@pytest.fixture
def place(device):
    """Rows of random blocks in a kind of memory, by default in panels."""

    def place(dtype, rows=48, kind=device.panels, k=None):
        k = k or width(dtype)
        data = stored(dtype, rows, k)
        (tensor,), _ = allocate([leaf("w", (rows, k), dtype)], kind, usage=tp.WEIGHTS)
        home = tensor.place
        home.buffer.write_tensor(tensor, home.offset, data.reshape(-1).data)
        return tensor, data

    return place


def problem(case, stream):
    laid = lay(case, stream.device.buffer_type, weights=stream.device.panels)
    laid.write_leafs()
    stream.compute(laid.bound)
    return laid.problem()


@pytest.mark.parametrize("case", [*PRODUCTS, *LOOKUPS], ids=lambda case: case.id)
def test_panels_give_what_the_reference_does(case, exact):
    assert problem(case, exact) == ""


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.id)
def test_products_with_rounded_rows_are_those_of_weights_in_rows(case, rounding):
    found = []
    for weights in (rounding.device.buffer_type, rounding.device.panels):
        laid = lay(case, rounding.device.buffer_type, weights=weights)
        laid.write_leafs()
        rounding.compute(laid.bound)
        found.append(read(laid.results[0], laid.bindings))

    # Tiles of AMX, which round to bf16, multiply panels from fewer rows on than rows.
    rows = laid.results[0].ne[1]
    differ = rounding.level.name == "amx" and FEW_TILED_PANELS < rows <= FEW_TILED
    near = (2e-2 if differ else 2e-6) * np.abs(found[0]).max()
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=near)


@pytest.mark.parametrize("level", [level for level in LEVELS if level in INT8_LEVELS])
@pytest.mark.parametrize("dtype", [tp.Q8_0, Q5_0, tp.Q4_K, tp.Q6_K], ids=str)
def test_a_row_of_x_has_the_same_product_beside_one_other_and_many(dtype, level, device, place):
    w, _ = place(dtype)
    values = np.random.default_rng(7).normal(size=(65, width(dtype))).astype(np.float32)
    found: dict[Rounding, list[Any]] = {}
    with device.open(threads=3, level=level, activations="int8") as stream:
        for rows in (2, 8, 12, 13, 24, 25, 33, 65):
            x = tp.input("x", (rows, width(dtype)), tp.F32)
            node = tp.mul_mat(w, x)
            some = run(stream, node, {x: values[:rows]})[:2]
            found.setdefault(stream.rounding(node), []).append(some)

    for alike in found.values():
        for some in alike[1:]:
            np.testing.assert_array_equal(some, alike[0])


@pytest.mark.skipif("avx2" not in LEVELS, reason="the processor has no AVX2")
@pytest.mark.parametrize("dtype", [Q3_K, tp.Q4_K, Q5_K, tp.Q6_K], ids=str)
def test_with_avx2_a_single_row_of_x_has_the_same_product_beside_others(dtype, device, place):
    w, _ = place(dtype)
    values = np.random.default_rng(7).normal(size=(5, width(dtype))).astype(np.float32)
    found = []
    with device.open(threads=2, level="avx2", activations="int8") as stream:
        for rows in (1, 2, 5):
            x = tp.input("x", (rows, width(dtype)), tp.F32)
            found.append(run(stream, tp.mul_mat(w, x), {x: values[:rows]})[0])

    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_blocks_are_given_back_bit_by_bit(dtype, device, place):
    rng = np.random.default_rng(5)
    tensor, _ = place(dtype)
    home, data = tensor.place, rng.integers(0, 256, tensor.nbytes, dtype=np.uint8)

    home.buffer.write_tensor(tensor, home.offset, data.data)
    out = np.empty_like(data)
    home.buffer.read_tensor(tensor, home.offset, out.data)

    assert np.array_equal(out, data)


def test_threads_that_share_a_matrix_pack_all_of_it(place, monkeypatch):
    monkeypatch.setattr("tensorplug_native.panels.ALONE", 0)
    tensor, data = place(tp.Q4_0, rows=80)

    assert np.array_equal(read(tensor).view(np.uint8).ravel(), data.ravel())


def test_slabs_of_rows_make_the_same_panels_as_the_whole(device, place):
    whole, data = place(tp.Q4_K)
    parts, _ = place(tp.Q4_K)
    home, row = parts.place, data.shape[1]
    home.buffer.fill(0)

    for first, count in ((16, 32), (0, 16)):
        slab = leaf("slab", (count, width(tp.Q4_K)), tp.Q4_K)
        rows = data[first : first + count].reshape(-1)
        home.buffer.write_tensor(slab, home.offset + first * row, rows.data)

    size = whole.nbytes
    assert np.array_equal(
        home.buffer.read(home.offset, size), whole.place.buffer.read(whole.place.offset, size)
    )


@pytest.mark.parametrize("second", ["panels", "rows"])
def test_gated_unit_reads_panels_and_rows_alike(second, device, rounding, place):
    kind = device.panels if second == "panels" else device.buffer_type
    values = np.random.default_rng(1).normal(size=(1, width(Q4_1))).astype(np.float32)
    answers = []
    for kinds in ((device.panels, kind), (device.buffer_type, device.buffer_type)):
        gate, up = (
            place(dtype, kind=kind, k=width(Q4_1))[0]
            for dtype, kind in zip((Q4_1, Q5_0), kinds, strict=True)
        )
        x = tp.input("x", values.shape, tp.F32)
        y = tp.swiglu(tp.mul_mat(gate, x), tp.mul_mat(up, x))
        with tp.Scheduler([rounding]).schedule(y) as schedule:
            assert "mul_mat_glu" in str(schedule.explain())
            answers.append(schedule.run({x: values})[y])

    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-5 * np.abs(answers[1]).max())


def test_reference_kernels_read_what_the_weights_hold_at_the_time(device, place):
    weights, data = place(tp.Q8_0)
    x = tp.input("x", (2, width(tp.Q8_0)), tp.F32)
    values = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
    with device.open(threads=1, activations="f32") as stream:
        stream.use_reference = True
        y = tp.mul_mat(weights, x)
        with tp.Scheduler([stream]).schedule(y) as schedule:
            before = schedule.run({x: values})[y].copy()
            home = weights.place
            home.buffer.write_tensor(weights, home.offset, data[::-1].copy().reshape(-1).data)
            after = schedule.run({x: values})[y]

    np.testing.assert_array_equal(after, before[:, ::-1])


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: tp.cast(w, tp.F32),
        lambda w, x: tp.cont(w),
        lambda w, x: tp.mul_mat(w[16:32], x),
        lambda w, x: tp.get_rows(tp.reshape(w, (24, 2 * w.shape[1])), tp.input("i", (1,), tp.I32)),
    ],
    ids=["cast", "cont", "product of a part", "rows of another shape"],
)
def test_other_uses_of_panels_are_refused_with_a_reason(use, device, place):
    node = use(place(tp.Q8_0)[0], tp.input("x", (1, width(tp.Q8_0)), tp.F32))

    answer = device.refuses(node)

    assert isinstance(answer, tp.Refusal)
    assert "lies in panels, which only mul_mat and get_rows read" in answer.reason


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 64), tp.Q8_0), ((2, 16, 64), tp.Q8_0), ((16, 64), tp.F16), ((16, 64), tp.F32)],
    ids=["rows that fill no panel", "several matrices", "f16", "f32"],
)
def test_weights_without_panels_are_not_taken(shape, dtype, device):
    tensor = leaf("w", shape, dtype)

    assert not device.panels.supports(tensor)
    with pytest.raises(TensorplugError, match="cannot hold"):
        device.panels.alloc(tensor.nbytes).write_tensor(tensor, 0, bytes(tensor.nbytes))


def test_host_does_not_see_panels_as_tensors(device, place):
    tensor, _ = place(tp.Q8_0)

    with pytest.raises(TensorplugError, match="rows side by side"):
        tensor.place.buffer.host()


def test_panels_are_preferred_where_rows_are_rounded(monkeypatch):
    weights = leaf("w", (PANEL_ROWS, 256), Q4_0)
    preferred = {}

    for activations in ("int8", "f32"):
        monkeypatch.setenv(VARIABLE, activations)
        with NativeDevice("cpu:0") as device:
            preferred[activations] = device.panels.prefers(weights)

    assert preferred == {"int8": LEVELS[-1] in INT8_LEVELS, "f32": False}


def test_weights_that_fill_no_panel_are_not_preferred(device):
    assert not device.panels.prefers(leaf("w", (PANEL_ROWS + 1, 256), Q2_K))
