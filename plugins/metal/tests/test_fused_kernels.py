"""Groups of nodes as one kernel, emulated: they give what their nodes give one by one."""

from collections.abc import Iterator

import numpy as np
import pytest

import tensorplug as tp
import tensorplug_emulator as emulator
from tensorplug import transfer
from tensorplug.dtypes import NVFP4, Q4_1, Q5_0
from tensorplug.fusion.matching import find_groups
from tensorplug_cpu.reference import encode
from tensorplug_emulator import Order, spaces
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.metal import emulated_metal, expanded
from tensorplug_emulator.msl_rules import problems
from tensorplug_emulator.spaces import space_problems
from tensorplug_metal.kernels import KERNELS
from tensorplug_simt.dialects.metal import metal_source
from tensorplug_testing.running import bind

pytestmark = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())


def leaf(name, *shape, dtype=tp.F32):
    return tp.input(name, shape, dtype)


def chain(op, count, length=96):
    value = leaf("a", 5, length)
    for i in range(count):
        value = op(value, leaf(f"b{i}", 1 if i % 2 else 5, length))
    return (value,)


def norm_mul(op, *, bias=False, length=96):
    scaled = tp.apply(tp.OPS[op], leaf("x", 5, length)) * leaf("w", length)
    return (scaled + leaf("b", length) if bias else scaled,)


def add_norm(op, *, weighted=True, length=96):
    total = leaf("a", 5, length) + leaf("b", 1, length)
    normed = tp.apply(tp.OPS[op], total)
    return (normed * leaf("w", 5, length) if weighted else normed), total


def turned(mode, **options):
    heads = tp.rms_norm(leaf("x", 3, 5, 40)) * leaf("w", 40)
    return (tp.rope(heads, tp.input("ids", (3,), tp.I32), mode=mode, **options),)


def delta_net():
    heads = [leaf(name, 2, 3, 2, 20) for name in "qkv"]
    gates = [leaf(name, 2, 3, 2, 1) for name in ("g", "beta")]
    net = tp.gated_delta_net(*heads, *gates, leaf("state", 2, 2, 20, 20), K=2)
    return tp.cpy(net[6:], leaf("cache", 4, 800)), tp.relu(net[:6])


def snake():
    x, a, b = leaf("x", 5, 33), leaf("a", 33), leaf("b", 33)
    return (x + tp.sqr(tp.sin(x * a)) * b,)


def combined(experts=3):
    mixed = leaf("experts", 4, experts, 33) * leaf("weights", 4, experts, 1)
    total = mixed[:, 0]
    for i in range(1, experts):
        total = total + mixed[:, i]
    return (total,)


def weight(name, *shape, dtype):
    if dtype is NVFP4:  # nothing on the device encodes it
        return leaf(name, *shape, dtype=dtype)
    return tp.cast(leaf(name, *shape), dtype) if dtype is not tp.F32 else leaf(name, *shape)


def product(dtype, columns):
    return (tp.mul_mat(weight("w", 70, 256, dtype=dtype), leaf("x", columns, 256)) + leaf("b", 70),)


def pair(unit, dtype, columns=1, *, bias=False):
    sides, x = [], leaf("x", columns, 256)
    for name in ("gate", "up"):
        side = tp.mul_mat(weight(name, 70, 256, dtype=dtype), x)
        sides.append(side + leaf(f"{name}_b", 1, 70) if bias else side)
    return (tp.apply(tp.OPS[unit], *sides),)


def experts(dtype, *, unit="", slots=1, bias=False):
    x, ids = leaf("x", 1, slots, 256), tp.input("ids", (1, 3), tp.I32)

    def side(name):
        given = tp.mul_mat_id(weight(name, 6, 70, 256, dtype=dtype), x, ids)
        return tp.add_id(given, leaf(f"{name}_b", 6, 70), ids) if bias else given

    return (tp.apply(tp.OPS[unit], side("gate"), side("up")) if unit else side("w"),)


def scaled(dtype, columns, *, unit=""):
    x = leaf("x", columns, 256)

    def side(name):
        return tp.mul_mat(weight(name, 70, 256, dtype=dtype), x) * leaf(f"{name}_s", 1)

    if unit:
        return (tp.apply(tp.OPS[unit], side("gate"), side("up")),)
    return (side("w") + leaf("b", 70),)


def scaled_experts(dtype, *, unit=""):
    x, ids = leaf("x", 1, 1, 256), tp.input("ids", (1, 3), tp.I32)

    def side(name):
        product = tp.mul_mat_id(weight(name, 6, 70, 256, dtype=dtype), x, ids)
        product = product * tp.get_rows(leaf(f"{name}_s", 1, 6, 1), ids)
        return tp.add_id(product, leaf(f"{name}_b", 6, 70), ids)

    return (tp.apply(tp.OPS[unit], side("gate"), side("up")) if unit else side("w"),)


CASES = {
    "mul_mat_scale of nvfp4": lambda: scaled(NVFP4, 1),
    "mul_mat_scale of f16 and 7 columns": lambda: scaled(tp.F16, 7),
    "mul_mat_scale_glu of q8_0": lambda: scaled(tp.Q8_0, 2, unit="swiglu"),
    "mul_mat_id_scale of nvfp4": lambda: scaled_experts(NVFP4),
    "mul_mat_id_scale_glu of bf16": lambda: scaled_experts(tp.BF16, unit="geglu"),
    "mul_mat_add of q4_0": lambda: product(tp.Q4_0, 1),
    "mul_mat_add of f16 and 7 columns": lambda: product(tp.F16, 7),
    "mul_mat_glu of q8_0": lambda: pair("swiglu", tp.Q8_0),
    "mul_mat_glu of q4_1 and 6 columns with biases": lambda: pair("geglu", Q4_1, 6, bias=True),
    "mul_mat_glu of f32 with biases": lambda: pair("swiglu_oai", tp.F32, 2, bias=True),
    "mul_mat_id_add of q8_0": lambda: experts(tp.Q8_0, bias=True),
    "mul_mat_id_glu of bf16": lambda: experts(tp.BF16, unit="swiglu"),
    "mul_mat_id_glu of q5_0 with biases": lambda: experts(Q5_0, unit="geglu", slots=3, bias=True),
    "norm_mul of rms_norm": lambda: norm_mul("rms_norm"),
    "norm_mul with bias": lambda: norm_mul("norm", bias=True),
    "norm_mul of odd rows": lambda: norm_mul("rms_norm", bias=True, length=33),
    "add_norm of rms_norm": lambda: add_norm("rms_norm"),
    "add_norm without weight": lambda: add_norm("norm", weighted=False),
    "add_norm of odd rows": lambda: add_norm("rms_norm", length=33),
    "rms_norm_rope of halves": lambda: turned("neox", dims=40, scale=0.5),
    "rms_norm_rope of a part": lambda: turned("normal", dims=12),
    "add_chain of 2": lambda: chain(tp.add, 2),
    "add_chain of 8": lambda: chain(tp.add, 8, 33),
    "mul_chain of 3": lambda: chain(tp.mul, 3),
    "snake of 33": snake,
    "activation_mul of silu": lambda: (tp.silu(leaf("x", 5, 33)) * leaf("other", 5, 33),),
    "relu_sqr of 33": lambda: (tp.sqr(tp.relu(leaf("x", 5, 33))),),
    "softcap of 33": lambda: (tp.scale(tp.tanh(tp.scale(leaf("x", 5, 33), 0.2)), 5.0),),
    "moe_combine of 3": combined,
    "gated_delta_net_cpy of two slots": delta_net,
    "ssm_conv_silu with bias": lambda: (
        tp.silu(tp.ssm_conv(leaf("x", 2, 12, 9), leaf("w", 12, 4)) + leaf("bias", 12)),
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with emulated_metal(KERNELS) as device:
        yield device


def grouped(device, nodes):
    """All of the graph of `nodes`, without and with its groups."""
    graph = tp.Graph(list(nodes))
    groups = find_groups(graph, device.fusions, device.refuses_group)
    return tp.Part.of(graph), tp.Part(graph.nodes, outputs=graph.outputs, groups=groups)


def outcome(device, part):
    rng = np.random.default_rng(3)
    leafs = sorted(part.leafs, key=lambda t: t.name)
    values = {t: rng.normal(size=t.shape).astype(np.float32) for t in leafs}
    values |= {t: encode(t.dtype, v) for t, v in values.items() if t.dtype.is_block}
    ids = np.array([4, 0, 5], np.int32)
    values |= {t: ids.reshape(t.shape) for t in part.leafs if t.dtype is tp.I32}
    bindings = bind(device, part, values)
    with device.open() as stream:
        stream.compute(part.bind(bindings))
    return [transfer.read(t, bindings) for t in part.outputs]


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(Order.FORWARD, id="forward", marks=pytest.mark.slow),
        pytest.param(Order.REVERSE, id="reverse", marks=pytest.mark.slow),
        pytest.param(Order.SHUFFLED, id="shuffled", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_fused_kernel_gives_what_its_nodes_give(device, name, order):
    graph, fused = grouped(device, CASES[name]())
    device.emulator.order = order

    ours, theirs = outcome(device, fused), outcome(device, graph)

    assert [group.pattern.name for group in fused.groups] == [name.split()[0]]
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_every_fused_kernel_has_a_case():
    assert {name.split()[0] for name in CASES} == set(KERNELS.groups)


@pytest.mark.long
@pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
@pytest.mark.parametrize("name", CASES)
def test_texts_of_groups_pass_clang_and_the_rules(device, name):
    _, fused = grouped(device, CASES[name]())

    texts = [metal_source(n) for g in fused.groups for n in device.lower_work(g).launches]

    assert texts
    assert [p for text in texts for p in (*space_problems(text), *problems(expanded(text)))] == []
