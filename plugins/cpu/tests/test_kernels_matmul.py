"""Matrix products: how weights of every kind are read, in chunks, by few rows and by many."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.blocks.rows import decode_rows
from tensorplug.dtypes import IQ4_NL
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.kernels import matmul
from tensorplug_testing.running import run

RNG = np.random.default_rng(8)
KINDS = [tp.F32, tp.F16, tp.BF16, tp.F64, tp.Q8_0, tp.Q4_K, IQ4_NL]


def weights(dtype, rows, row):
    """Stored rows and what they mean, f32."""
    if not dtype.is_block:
        numbers = RNG.integers(-8, 8, (rows, row)).astype(np.float32)
        stored = (numbers.view(np.uint32) >> 16).astype(np.uint16) if dtype is tp.BF16 else numbers
        return stored.astype(dtype.storage), numbers
    raw = RNG.integers(0, 60, (rows, dtype.row_size(row)), dtype=np.uint8)
    numbers = np.empty((rows, row), np.float32)
    decode_rows(dtype, raw, numbers)
    return raw, numbers


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 40])
def test_few_rows_and_many_give_the_product(backend, dtype, rows):
    stored, numbers = weights(dtype, 70, 256)
    w, x = leaf("w", (70, 256), dtype), tp.input("x", (rows, 256), tp.F32)
    data = RNG.normal(size=(rows, 256)).astype(np.float32)

    found = run(backend, x @ w.T, {w: stored, x: data})

    close(found, data.astype(np.float64) @ numbers.T)


@pytest.mark.parametrize("dtype", [tp.F16, tp.Q8_0], ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_weights_larger_than_a_chunk_are_used_whole(backend, monkeypatch, dtype, rows):
    monkeypatch.setattr(matmul, "CHUNK", 1000)
    monkeypatch.setattr(matmul, "PARALLEL", 500)
    stored, numbers = weights(dtype, 101, 64)
    w, x = leaf("w", (101, 64), dtype), tp.input("x", (rows, 64), tp.F32)
    data = RNG.normal(size=(rows, 64)).astype(np.float32)

    found = run(backend, x @ w.T, {w: stored, x: data})

    close(found, data.astype(np.float64) @ numbers.T)


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q8_0], ids=str)
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("tokens", [1, 6])
def test_matrices_serve_several_heads_and_batches(backend, dtype, batch, heads, tokens):
    stored, numbers = weights(dtype, 2 * 2 * 5, 32)
    w = leaf("w", (2, 2, 5, 32), dtype)
    x = tp.input("x", (2 * batch, tokens, 2 * heads, 32), tp.F32)
    data = RNG.normal(size=x.shape).astype(np.float32)

    found = run(
        backend,
        tp.mul_mat(w, tp.permute(x, (0, 2, 1, 3))),
        {w: stored.reshape(2, 2, 5, -1), x: data},
    )

    many = numbers.reshape(2, 2, 5, 32).repeat(batch, 0).repeat(heads, 1)
    close(found, np.einsum("bthk,bhnk->bhtn", data.astype(np.float64), many))


@pytest.mark.parametrize(
    "look",
    [
        lambda w: w[:, ::2],
        lambda w: w[::3, 4:36],
        lambda w: tp.permute(tp.reshape(w, (10, 3, 64)), (1, 0, 2)),
    ],
    ids=["every second column", "window", "heads first"],
)
def test_weights_that_the_blas_cannot_read_are_packed(backend, look):
    w = leaf("w", (30, 64), tp.F32)
    seen = look(w)
    x = tp.input("x", (*seen.shape[:-2], 7, seen.shape[-1]), tp.F32)
    _, numbers = weights(tp.F32, 30, 64)
    data = RNG.normal(size=x.shape).astype(np.float32)
    values = {w: numbers, x: data}

    found = run(backend, tp.mul_mat(seen, x), values)

    copied = run(backend, tp.cont(seen), {w: numbers})
    close(found, data.astype(np.float64) @ copied.swapaxes(-1, -2))


@pytest.mark.parametrize("dtype", [tp.F16, tp.BF16], ids=str)
def test_activations_of_half_precision_are_widened(backend, dtype):
    stored, numbers = weights(dtype, 4, 32)
    w, x = leaf("w", (5, 32), tp.F32), tp.input("x", (4, 32), dtype)
    table = RNG.normal(size=(5, 32)).astype(np.float32)

    found = run(backend, x @ w.T, {w: table, x: stored})

    close(found, numbers.astype(np.float64) @ table.T)


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q8_0], ids=str)
@pytest.mark.parametrize(("tokens", "used", "given"), [(1, 2, 2), (1, 2, 1), (50, 3, 1), (7, 2, 2)])
def test_rows_meet_the_experts_that_their_ids_name(backend, dtype, tokens, used, given):
    stored, numbers = weights(dtype, 6 * 9, 64)
    w = leaf("w", (6, 9, 64), dtype)
    x, ids = tp.input("x", (tokens, given, 64), tp.F32), tp.input("ids", (tokens, used), tp.I32)
    data = RNG.normal(size=x.shape).astype(np.float32)
    chosen = RNG.integers(0, 6, (tokens, used)).astype(np.int32)

    found = run(
        backend, tp.mul_mat_id(w, x, ids), {w: stored.reshape(6, 9, -1), x: data, ids: chosen}
    )

    experts = numbers.reshape(6, 9, 64)[chosen]
    close(found, np.einsum("tuk,tunk->tun", data.repeat(used // given, 1), experts))


def test_expert_that_does_not_exist_is_named(backend):
    w = leaf("w", (3, 4, 8), tp.F32)
    x, ids = tp.input("x", (1, 1, 8), tp.F32), tp.input("ids", (1, 2), tp.I32)
    node = tp.mul_mat_id(w, x, ids, name="experts")
    values = {w: np.zeros(w.shape), x: np.zeros(x.shape), ids: np.array([[1, -2]])}

    with pytest.raises(tp.GraphError) as caught:
        run(backend, node, values)

    assert str(caught.value) == (
        f"{node}: ids {ids} holds -2 at [0, 1], which names no row; rows are 0 to 2, and -1 stands "
        "for none"
    )
