"""Graphs of several ops on the cpu device against the reference: order, sharing, common memory."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import allocate
from tensorplug.graph.tensor import leaf
from tensorplug_cpu import reference


class Leafs:
    """Makes leafs and remembers what is stored in them."""

    def __init__(self, seed=0):
        self.stored = {}
        self.rng = np.random.default_rng(seed)

    def random(self, *shape, dtype=tp.F32):
        return self.given(self.rng.uniform(-1, 1, shape), dtype)

    def given(self, values, dtype=tp.I32):
        tensor = leaf("", np.shape(values), dtype)
        slots = reference.encode(dtype, np.asarray(values))
        self.stored[tensor] = slots.astype(np.float32) if dtype is tp.F32 else slots
        return tensor


def run(backend, graph, stored):
    """Values of the outputs of `graph`, each root in memory of its own."""
    roots = [t for t in (*graph.leafs, *graph.nodes) if t.view_of is None]
    placed, _ = allocate([leaf("", t.shape, t.dtype) for t in roots], backend.buffer_type)
    places = {root: home.place for root, home in zip(roots, placed, strict=True)}
    bindings = tp.Bindings(places)
    for tensor, data in stored.items():
        transfer.write(tensor, data, bindings)
    backend.compute(tp.Part.of(graph, bindings))
    return [
        reference.decode(t.dtype, transfer.read(t, bindings)).reshape(t.shape)
        for t in graph.outputs
    ]


def cache_is_written_before_attention_reads_it(leafs):
    """Rows of a step go into the f16 cache; attention looks at a part of it, heads permuted."""
    caches = [leafs.random(16, 2 * 32, dtype=tp.F16) for _ in range(2)]
    rows, at = [leafs.random(3, 2 * 32) for _ in range(2)], leafs.given([4, 5, 6], tp.I64)
    written = [tp.set_rows(c, r, at) for c, r in zip(caches, rows, strict=True)]
    k, v = (tp.permute(c[:8].reshape(8, 2, 32), (1, 0, 2)) for c in written)
    mask = leafs.given(np.where(np.arange(8) <= np.array([[4], [5], [6]]), 0, -np.inf), tp.F16)
    return [tp.flash_attn_ext(leafs.random(4, 3, 32), k, v, mask, scale=0.2), *caches]


def positions_change_between_two_uses(leafs):
    """What is prepared for the first rope must not serve the second."""
    x, positions, later = leafs.random(3, 2, 8), leafs.given([0, 1, 2]), leafs.given([7, 8, 9])
    first = tp.rope(x, positions, dims=8, mode="neox")
    moved = tp.cpy(later, positions)
    second = [tp.rope(x, at, dims=8, mode="neox") for at in (moved, positions)]
    return [first, *second, tp.rope(x, moved, dims=8)]


def factors_differ_between_two_uses(leafs):
    x, positions = leafs.random(3, 2, 8), leafs.given([1, 2, 3])
    factors = [leafs.given(leafs.rng.uniform(1, 2, 4), tp.F32) for _ in range(2)]
    return [tp.rope(x, positions, each, dims=8) for each in (*factors, None)]


def memory_is_read_written_and_read(leafs):
    table = leafs.random(4, 6)
    before = tp.sum_rows(table)
    written = tp.set_rows(table, leafs.random(2, 6), leafs.given([3, 0]))
    between = tp.sum_rows(written)
    doubled = tp.ops.in_place(tp.scale(written, 2.0))
    return [before, between, tp.sum_rows(doubled), tp.dup(table[1:3])]


def chain_runs_in_place(leafs):
    x = tp.mul_mat(leafs.random(8, 8), leafs.random(5, 8))
    for step in (tp.relu, tp.exp, tp.rms_norm, tp.soft_max, tp.neg):
        x = tp.ops.in_place(step(x))
    return [x]


def one_source_is_used_twice(leafs):
    x = leafs.random(6, 6)
    return [tp.add(x, x), tp.mul_mat(x, x), tp.div(tp.mul(x, x), x), tp.concat(x, x)]


def views_of_views_are_written(leafs):
    root = leafs.random(4, 6, 8)
    written = tp.cpy(leafs.random(2, 3), root[1:3][:, 2, ::3])
    return [written, tp.dup(root), tp.cont(tp.transpose(root[2]))]


def experts_are_chosen_mixed_and_added(leafs):
    x, gate = leafs.random(5, 32), leafs.random(6, 32)
    up, bias = leafs.random(6, 24, 32, dtype=tp.Q8_0), leafs.random(6, 24)
    share = tp.soft_max(tp.mul_mat(gate, x))
    chosen = tp.argsort(share, descending=True)[:, :2]
    made = tp.mul_mat_id(up, x.reshape(5, 1, 32), chosen)
    weights = tp.get_rows(share.reshape(5, 6, 1), chosen)
    return [tp.mul(tp.add_id(made, bias, chosen), weights)]


def layer_of_a_model(leafs):
    x, norm = leafs.random(7, 64), leafs.random(64)
    positions = leafs.given(np.arange(7))
    h = tp.mul(tp.rms_norm(x), norm)
    q, k, v = (
        tp.mul_mat(leafs.random(heads * 16, 64, dtype=dtype), h).reshape(7, heads, 16)
        for heads, dtype in [(4, tp.Q8_0), (2, tp.F16), (2, tp.BF16)]
    )
    q, k = (tp.rope(t, positions, dims=16, mode="neox") for t in (q, k))
    q, k, v = (tp.permute(t, (1, 0, 2)) for t in (q, k, v))
    scores = tp.diag_mask_inf(tp.scale(tp.mul_mat(k, q), 0.25))
    seen = tp.mul_mat(tp.cont(tp.transpose(v)), tp.soft_max(scores))
    joined = tp.cont(tp.permute(seen, (1, 0, 2)), (7, 64))
    x = tp.add(x, tp.mul_mat(leafs.random(64, 64, dtype=tp.Q4_0), joined))
    return [tp.add(x, tp.swiglu(tp.mul_mat(leafs.random(128, 64), tp.rms_norm(x))))]


PROGRAMS = [
    cache_is_written_before_attention_reads_it,
    positions_change_between_two_uses,
    factors_differ_between_two_uses,
    memory_is_read_written_and_read,
    chain_runs_in_place,
    one_source_is_used_twice,
    views_of_views_are_written,
    experts_are_chosen_mixed_and_added,
    layer_of_a_model,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_gives_what_the_reference_gives(program, backend):
    leafs = Leafs()
    graph = tp.Graph(program(leafs))
    memory = reference.execute(graph, leafs.stored)
    wanted = [memory.value(t).reshape(t.shape) for t in graph.outputs]

    found = run(backend, graph, leafs.stored)

    for got, want in zip(found, wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-4, abs=2e-5)


RANDOM_STEPS = [
    tp.add,
    tp.mul,
    lambda x, y: tp.sub(x, tp.cont(tp.transpose(y))),
    tp.mul_mat,
    lambda x, y: tp.mul_mat(tp.cont(tp.transpose(x)), tp.cast(y, tp.F16)),
    lambda x, y: tp.cpy(tp.tanh(y), tp.transpose(x)),
    lambda x, y: tp.set_rows(x, y[:3], tp.argsort(tp.cont(y[0, :3]))),
    lambda x, y: tp.acc(x, y[2:4, :5], strides=(32, 4), offset=36),
    lambda x, _: tp.ops.in_place(tp.tanh(x)),
    lambda x, _: tp.rms_norm(x),
    tp.soft_max,
    lambda x, _: tp.cont(tp.permute(x.reshape(2, 4, 8), (1, 0, 2)), (8, 8)),
    lambda x, y: tp.concat(x[:, :4], y[:, 4:], axis=1),
    lambda x, y: tp.geglu(tp.concat(x, y, axis=1)),
]
"""Steps from two 8 by 8 matrices to one, values staying near 1."""


def random_program(leafs):
    made = [leafs.random(8, 8) for _ in range(3)]
    for _ in range(15):
        step = RANDOM_STEPS[leafs.rng.integers(len(RANDOM_STEPS))]
        x, y = (made[leafs.rng.integers(len(made))] for _ in range(2))
        made.append(tp.scale(tp.cast(step(x, y), tp.F32), 0.5))
    return [*made[-4:], *[tp.dup(t) for t in made]]


@pytest.mark.parametrize("seed", range(40))
def test_random_program_gives_what_the_reference_gives(seed, backend):
    leafs = Leafs(seed)
    graph = tp.Graph(random_program(leafs))
    memory = reference.execute(graph, leafs.stored)
    wanted = [memory.value(t).reshape(t.shape) for t in graph.outputs]

    found = run(backend, graph, leafs.stored)

    for got, want in zip(found, wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-3, abs=1e-3)
