"""Groups of nodes computed as one: what single nodes give, refusals, ids, and the reference."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.dtypes import Q8_K
from tensorplug.fusion.matching import find_groups
from tensorplug_native.fusions import FUSIONS
from tensorplug_testing.running import bind

from .streams import CAST, LEVELS

NE = 96
IDS = np.array([7, 3, 39, 0, 11], np.int64)


def leaf(name, *shape, dtype=tp.F32):
    return tp.input(name, shape, dtype)


def weight(name, *shape, dtype=tp.Q8_0):
    w = leaf(name, *shape)
    return tp.cast(w, dtype) if dtype is not tp.F32 else w


def norm_mul(op, *, bias=False):
    scaled = tp.apply(tp.OPS[op], leaf("x", 5, NE)) * leaf("w", NE)
    return scaled + leaf("b", NE) if bias else scaled


def add_norm(op, *, weighted=True):
    total = leaf("a", 5, NE) + leaf("b", 1, NE)
    normed = tp.apply(tp.OPS[op], total)
    return (normed * leaf("w", 5, NE) if weighted else normed), total


def turned(*, norm, tokens=5):
    x = leaf("x", tokens, 4, 64)
    if norm:
        x = tp.rms_norm(x) * leaf("w", 64)
    return tp.rope(x, leaf("at", tokens, dtype=tp.I32), dims=48, mode="neox")


def stored(dtype, *, norm, ids=tp.I64):
    rows = tp.reshape(turned(norm=norm), (5, 4 * 64))
    return tp.set_rows(leaf("table", 40, 4 * 64, dtype=dtype), rows, leaf("ids", 5, dtype=ids))


def product(dtype=tp.Q8_0):
    return tp.mul_mat(weight("w", 70, 256, dtype=dtype), leaf("x", 1, 256)) + leaf("b", 1, 70)


def pair(unit, dtypes=(tp.Q8_0, tp.Q8_0), *, bias=False, width=256):
    sides, x = [], leaf("x", 1, width)
    for name, dtype in zip(("gate", "up"), dtypes, strict=True):
        side = tp.mul_mat(weight(name, 70, width, dtype=dtype), x)
        sides.append(side + leaf(f"{name}_b", 1, 70) if bias else side)
    return tp.apply(tp.OPS[unit], *sides)


def experts(*, unit="", slots=1, bias=False):
    x, ids = leaf("x", 1, slots, 256), leaf("ids", 1, 3, dtype=tp.I32)

    def side(name):
        given = tp.mul_mat_id(weight(name, 6, 70, 256), x, ids)
        return tp.add_id(given, leaf(f"{name}_b", 6, 70), ids) if bias else given

    return tp.apply(tp.OPS[unit], side("gate"), side("up")) if unit else side("w")


CASES = {
    "norm_mul": lambda: norm_mul("rms_norm"),
    "norm_mul of norm with bias": lambda: norm_mul("norm", bias=True),
    "add_norm": lambda: add_norm("rms_norm"),
    "add_norm without weight": lambda: add_norm("norm", weighted=False),
    "rms_norm_rope": lambda: turned(norm=True),
    "rms_norm_rope_set_rows": lambda: stored(tp.F16, norm=True),
    "rope_set_rows": lambda: stored(tp.F32, norm=False),
    "rope_set_rows into q8_0": lambda: stored(tp.Q8_0, norm=False, ids=tp.I32),
    "mul_mat_add": product,
    **{
        f"mul_mat_add of {t}": lambda t=t: product(t)
        for t in sorted(CAST - {tp.Q8_0}, key=lambda t: t.id)
    },
    "mul_mat_glu": lambda: pair("swiglu"),
    "mul_mat_glu of two types": lambda: pair("geglu", (tp.Q4_0, tp.F16)),
    "mul_mat_glu with biases": lambda: pair("swiglu_oai", bias=True),
    "mul_mat_id_add": lambda: experts(bias=True),
    "mul_mat_id_glu": lambda: experts(unit="swiglu"),
    "mul_mat_id_glu with biases": lambda: experts(unit="geglu", slots=3, bias=True),
}


def graph_of(made):
    nodes = made if isinstance(made, tuple) else (made,)
    writes = [n for n in nodes if n.writes]
    return tp.Graph([n for n in nodes if not n.writes], effects=writes)


def values_of(graph):
    rng = np.random.default_rng(3)
    values = {}
    for t in graph.leafs:
        if t.name == "ids":
            values[t] = (IDS[: t.size] % (6 if t.shape[0] == 1 else 40)).reshape(t.shape)
        elif t.dtype is tp.I32:
            values[t] = np.arange(t.size)
        elif t.dtype.is_block:
            values[t] = np.zeros((40, t.dtype.row_size(t.ne[0])), np.uint8)
        else:
            values[t] = rng.normal(size=t.shape).astype(np.float32)
    return values


def grouped(device, graph):
    """All of the graph with its groups."""
    groups = find_groups(graph, device.fusions, device.refuses_group)
    return tp.Part(graph.nodes, outputs=graph.outputs, groups=groups)


def outcome(backend, part, ends, values):
    """What `ends` hold after a run with fresh memory."""
    bindings = bind(backend.device, part, values)
    backend.compute(part.bind(bindings))
    return [transfer.read(t, bindings) for t in ends]


@pytest.mark.parametrize("name", CASES)
def test_group_gives_what_its_nodes_give(device, backend, name):
    graph = graph_of(CASES[name]())
    fused, values = grouped(device, graph), values_of(graph)
    ends = (*graph.outputs, *(root for node in graph.effects for root in node.written_roots))

    ours, theirs = (outcome(backend, g, ends, values) for g in (fused, tp.Part.of(graph)))

    assert [group.pattern.name for group in fused.groups] == [name.split()[0]]
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_every_fusion_has_a_case():
    assert {name.split()[0] for name in CASES} == set(FUSIONS)


@pytest.mark.parametrize("name", ["add_norm", "mul_mat_glu", "rope_set_rows"])
def test_plain_functions_compute_groups_node_by_node(device, backend, name):
    graph = graph_of(CASES[name]())
    fused, values = grouped(device, graph), values_of(graph)
    ends = (*graph.outputs, *(root for node in graph.effects for root in node.written_roots))
    wanted = outcome(backend, tp.Part.of(graph), ends, values)
    backend.use_reference = True
    try:
        found = outcome(backend, fused, ends, values)
    finally:
        backend.use_reference = False

    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


REFUSED = {
    "norm_mul: no kernel for group_norm with what follows it": lambda: (
        tp.group_norm(leaf("x", 4, 8, 8), 2) * leaf("w", 8)
    ),
    "norm_mul: rows of all sources must be of one length": lambda: (
        tp.rms_norm(leaf("x", 4, 8)) * leaf("w", 1)
    ),
    "norm_mul: it takes f32 in rows without gaps": lambda: (
        tp.rms_norm(leaf("x", 4, 8)) * tp.cast(leaf("w", 8), tp.F16)
    ),
    "mul_mat_add: it takes one row of x": lambda: (
        tp.mul_mat(leaf("w", 7, 8), leaf("x", 2, 8)) + leaf("b", 2, 7)
    ),
    "mul_mat_add: it takes weights of types that the kernels read as they are": lambda: (
        tp.mul_mat(leaf("w", 7, 256, dtype=Q8_K), leaf("x", 1, 256)) + leaf("b", 1, 7)
    ),
    "rope_set_rows: the rows of the table must be those of tokens": lambda: tp.set_rows(
        leaf("table", 40, 64),
        tp.reshape(turned(norm=False), (20, 64)),
        leaf("ids", 20, dtype=tp.I64),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_group_that_the_kernels_do_not_compute_is_refused_with_a_reason(device, reason):
    graph = graph_of(REFUSED[reason]())
    refusals = []

    def refuses(group):
        refusals.append(device.refuses_group(group))
        return refusals[-1]

    find_groups(graph, device.fusions, refuses)

    assert [refusal.reason for refusal in refusals] == [f"cpu:0: {reason}"]


@pytest.mark.parametrize("wrong", [-2, 6])
def test_an_id_outside_its_range_is_named_by_the_group_too(device, backend, wrong):
    graph = graph_of(experts(unit="swiglu"))
    fused, values = grouped(device, graph), values_of(graph)
    ids = next(t for t in graph.leafs if t.name == "ids")
    values[ids] = np.array([[0, wrong, 1]], np.int32)

    with pytest.raises(tp.GraphError) as caught:
        outcome(backend, fused, graph.outputs, values)

    assert str(caught.value) == (
        f"{fused.groups[0]['gate']}: ids {ids} holds {wrong} at [0, 1], which names no row; rows "
        "are 0 to 5, and -1 stands for none"
    )


ROUNDED = [
    name for name in CASES if name.split()[0].startswith("mul_mat") and " of " not in name
] + [
    f"mul_mat_add of {t}"
    for t in sorted(CAST, key=lambda t: t.id)
    if t.is_block and t is not tp.Q8_0
]


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "baseline"])
@pytest.mark.parametrize("name", ROUNDED)
def test_products_of_a_group_that_round_keep_nan(device, name, level):
    graph = graph_of(CASES[name]())
    fused, values = grouped(device, graph), values_of(graph)
    x = next(t for t in graph.leafs if t.name == "x")
    values[x][..., 37] = np.nan

    with device.open(threads=2, level=level, activations="int8") as rounding:
        (found,) = outcome(rounding, fused, graph.outputs, values)

    assert np.isnan(found).all()


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "baseline"])
@pytest.mark.parametrize(
    "dtypes", [(tp.Q4_K, tp.Q6_K), (tp.F16, tp.F16), (tp.F16, tp.Q6_K), (tp.BF16, tp.F16)], ids=str
)
def test_products_of_a_group_may_round_x_as_single_ones_do(device, dtypes, level):
    graph = graph_of(pair("swiglu", dtypes, width=768))
    fused, values = grouped(device, graph), values_of(graph)

    with device.open(threads=2, level=level, activations="int8") as rounding:
        ours, theirs = (
            outcome(rounding, g, graph.outputs, values)[0] for g in (fused, tp.Part.of(graph))
        )

    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
