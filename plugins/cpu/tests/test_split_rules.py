"""Every way of every split rule, carried out: two parts, each by the reference, put together."""

from fractions import Fraction

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Refusal
from tensorplug.graph.tensor import leaf
from tensorplug.ops.split import MIRRORED, PARTIAL, result_axis
from tensorplug.ops.table import Call
from tensorplug_cpu import reference
from tensorplug_testing.cases import CASES, build

MOST = 60
"""Cases of an op that are tried; ways repeat themselves."""


def plain_cases(op):
    """Cases of `op` whose sources are leafs without gaps."""
    found = [c for c in CASES if c.op == op and not c.in_place and set(c.layouts) <= {"plain"}]
    return found[:: max(1, len(found) // MOST)]


def call_of(node):
    return Call(tp.OPS[node.op], node.operands, node.params)


def results(node, stored):
    """Values of the result and of everything else that the node writes."""
    memory = reference.execute(tp.Graph(node), stored)
    return [memory.value(t) for t in (node, *node.also_writes)]


def units(tensor, axis, node):
    """How many indivisible parts there are along a dimension: blocks of either type in a row."""
    return tensor.ne[axis] // (max(tensor.dtype.block, node.dtype.block) if axis == 0 else 1)


def fractions_of(node, way):
    """Where a dimension can be cut in two so that all sources are cut in the same proportion."""
    counts = [
        units(tensor, state, node)
        for tensor, state in pairs(node, way)
        if tensor is not None and isinstance(state, int)
    ]
    if not counts:
        return [Fraction(1, 2)]
    return [
        share
        for share in (Fraction(1, 2), Fraction(2, 3), Fraction(max(counts) - 1, max(counts)))
        if 0 < share < 1 and all((n * share).denominator == 1 and 0 < n * share < n for n in counts)
    ][-1:]


def pairs(node, way):
    names = [source.name for source in tp.OPS[node.op].sources]
    return [(t, way.sources.get(n, MIRRORED)) for n, t in zip(names, node.operands, strict=True)]


def part(tensor, data, state, piece, rng_seed):
    """One part of a leaf: the tensor and what is stored in it."""
    if state is MIRRORED:
        return tensor, data
    if state is PARTIAL:
        first = np.random.default_rng(rng_seed).uniform(-1, 1, data.shape).astype(np.float32)
        return leaf("", tensor.shape, tensor.dtype), data - first if piece else first
    axis = data.ndim - 1 - state
    share, total = piece
    edge = int(data.shape[axis] * share)
    cut = np.take(data, range(edge) if total == 0 else range(edge, data.shape[axis]), axis)
    shape = list(tensor.shape)
    length = int(tensor.ne[state] * share)
    shape[axis] = length if total == 0 else tensor.ne[state] - length
    return leaf("", shape, tensor.dtype), cut


def local_params(node, way, share, which):
    """Parameters of one part: sizes of the result are those of its slice."""
    params = dict(node.params)
    if isinstance(way.result, int) and params.get("ne"):
        ne = list(params["ne"])
        first = int(ne[way.result] * share)
        ne[way.result] = first if which == 0 else ne[way.result] - first
        params["ne"] = tuple(ne)
    return params


def carried_out(built, way, share):
    """The result of `way` on two devices, put together."""
    node, halves = built.node, []
    for which in (0, 1):
        operands, stored = [], {}
        for seed, (tensor, state) in enumerate(pairs(node, way)):
            if tensor is None:
                operands.append(None)
                continue
            piece = which if state is PARTIAL else (share, which)
            mine, data = part(tensor, built.stored[tensor], state, piece, seed)
            operands.append(mine)
            stored[mine] = data
        local = tp.apply(tp.OPS[node.op], *operands, **local_params(node, way, share, which))
        halves.append(results(local, stored))
    if way.result is PARTIAL:
        return [a + b for a, b in zip(*halves, strict=True)]
    return [np.concatenate(both, 3 - way.result) for both in zip(*halves, strict=True)]


def can_be_cut(node, way):
    """Whether the sources of this case are there, large enough, and of types that can be summed."""
    if PARTIAL in (*way.sources.values(), way.result) and node.dtype not in (tp.F32, tp.I64):
        return False
    for tensor, state in pairs(node, way):
        if state is MIRRORED:
            continue
        if tensor is None or (state is PARTIAL and tensor.dtype is not tp.F32):
            return False
        if state is not PARTIAL and (tensor.rank <= state or units(tensor, state, node) < 2):
            return False
    return bool(fractions_of(node, way))


def moderate(built):
    """Whether sums of parts keep their digits."""
    return all(np.abs(v).max(initial=0) < 1e3 for v in built.stored.values())


SPLIT = sorted(
    op.name
    for op in tp.OPS.values()
    if not op.is_view
    and any(list(op.split(call_of(build(case).node))) for case in plain_cases(op.name))
)


@pytest.mark.parametrize("op", SPLIT)
def test_parts_put_together_are_the_whole(op):
    tried = 0
    for case in plain_cases(op):
        built = build(case)
        wanted = results(built.node, built.stored)
        for way in tp.OPS[op].split(call_of(built.node)):
            summed = PARTIAL in (*way.sources.values(), way.result)
            if not can_be_cut(built.node, way) or (summed and not moderate(built)):
                continue
            got = carried_out(built, way, fractions_of(built.node, way)[0])
            for ours, theirs in zip(got, wanted, strict=True):
                np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5, err_msg=f"{case.id}: {way}")
            tried += 1

    assert tried


def states_of(node, **given):
    names = [source.name for source in tp.OPS[node.op].sources]
    return [
        None if t is None else given.get(n, MIRRORED)
        for n, t in zip(names, node.operands, strict=True)
    ]


def test_mirrored_sources_give_a_mirrored_result():
    node = tp.cumsum(leaf("x", (4, 8), tp.F32))

    assert result_axis(call_of(node), states_of(node)) is MIRRORED


def test_weights_split_by_outputs_and_then_by_inputs_leave_one_sum():
    x, up, down = leaf("x", (2, 8), tp.F32), leaf("up", (6, 8), tp.F32), leaf("d", (8, 6), tp.F32)
    hidden = tp.mul_mat(up, x)
    result = tp.mul_mat(down, hidden)

    first = result_axis(call_of(hidden), states_of(hidden, w=1))
    second = result_axis(call_of(result), states_of(result, w=0, x=first))

    assert (first, second) == (0, PARTIAL)


@pytest.mark.parametrize(
    ("node", "given", "reason"),
    [
        (
            tp.rms_norm(leaf("x", (4, 8), tp.F32)),
            {"x": 0},
            "rms_norm: has x split along 0; it runs on shards with x split along 1",
        ),
        (
            tp.set(leaf("a", (4,), tp.F32), leaf("b", (2,), tp.F32)),
            {"a": PARTIAL},
            "set: has a partial, but it needs whole sources on every device",
        ),
        *[
            (
                tp.cast(leaf("x", (32,), tp.F32), to),
                {"x": PARTIAL},
                "dup: has x partial; it runs on shards with x split along 0",
            )
            for to in ("i32", "q8_0")
        ],
    ],
)
def test_sources_that_are_split_otherwise_are_refused_with_the_ways_there_are(node, given, reason):
    assert result_axis(call_of(node), states_of(node, **given)) == Refusal(reason)
