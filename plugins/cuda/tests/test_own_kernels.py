"""The kernels that only this backend has: compiled for four generations of GPUs, and emulated.

Nothing here ran on a GPU, and none of it needs CuPy.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
import tensorplug_emulator as emulator
from tensorplug.device import Group
from tensorplug.dtypes import IQ2_XXS
from tensorplug.fusion.matching import find_groups
from tensorplug_cpu.device import CPUDevice
from tensorplug_cuda.kernels import KERNELS
from tensorplug_emulator import Order, nvrtc
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import (
    ARCHITECTURES,
    Limits,
    alone_problems,
    compile_problems,
    emulation_problems,
    first_launches,
    launches_of,
    supported,
    turn_of,
)
from tensorplug_emulator.suites import kernels
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower
from tensorplug_testing.cases import Arg
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.case import UNIT, Data, among, integers, uniform
from tensorplug_testing.cases.matmul import BLOCKS, product, product_of_experts
from tensorplug_testing.cases.softmax import MASK
from tensorplug_testing.suites.graphs import Trial
from tensorplug_testing.suites.work import Rig
from tensorplug_testing.tiers import select

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
needs_emulator = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())

LONG = pytest.mark.long
SLOW = pytest.mark.slow
in_each_order_at_leisure = pytest.mark.parametrize(
    "order",
    [pytest.param(order, marks=LONG if order is Order.SHUFFLED else SLOW) for order in Order],
    ids=lambda order: order.name.lower(),
)
OPS = sorted(KERNELS.own)
GPU = Facts(
    wide=False,
    max_group=1024,
    local_memory=48 * 1024,
    subgroup=32,
    subgroup_required=True,
    fp16=True,
    fp64=True,
    int_dot=True,
    int8_activations=True,
    units=16,
)
LIMITS = Limits(
    registers=64,
    more_registers={
        "attend": 168,
        "attend_few": 255,  # of iq1_m; two groups of 128 items fit, and nothing is spilled
        "chain": 80,
        "decoded": 72,  # of tq1_0
        "expert_tiles": 72,  # for sm_70
        "matvec": 160,
        "mma_attend": 240,  # heads of 256; two groups of 128 items fit, and nothing is spilled
        "mma_experts": 128,
        "mma_product": 128,
        "product_tile": 160,  # of tensorplug-simt, for sm_70
        "warp_product": 128,
    },
)

FUSED = {
    "add_chain_7": "add_chain",
    "add_many": "add_chain",
    "mul_chain_8": "mul_chain",
    "silu_mul": "activation_mul",
    "softplus_mul": "activation_mul",
    "relu_sqr": "relu_sqr",
    "snake": "snake",
    "softcap": "softcap",
    "rms_norm_mul_odd": "norm_mul",
    "norm_mul_add": "norm_mul",
    "add_norm_mul_add": "add_norm",
    **dict.fromkeys(
        (f"rms_norm_mul_rope{form}" for form in ("", "_neox", "_imrope", "_vision", "_part")),
        "rms_norm_rope",
    ),
    "combined_2": "moe_combine",
    "product_bias_bf16_7": "mul_mat_add",
    "product_bias_q4_0_1": "mul_mat_add",
    "product_residual": "mul_mat_add",
    "gated_swiglu_q8_0": "mul_mat_glu",
    "gated_geglu_6": "mul_mat_glu",
    "gated_with_bias": "mul_mat_glu",
    "gated_with_one_bias": "mul_mat_glu",
    "experts_with_bias": "mul_mat_id_add",
    "gated_experts_1": "mul_mat_id_glu",
    "mixture_q8_0": "mul_mat_id_glu",
    "scaled_product_nvfp4_1": "mul_mat_scale",
    "scaled_product_f16_3": "mul_mat_scale",
    "scaled_experts_1": "mul_mat_id_scale",
    "scaled_experts_4": "mul_mat_id_scale",
    "gated_scaled_nvfp4_1": "mul_mat_scale_glu",
    "gated_scaled_f32_3": "mul_mat_scale_glu",
    "gated_scaled_experts_1": "mul_mat_id_scale_glu",
    "gated_scaled_experts_3": "mul_mat_id_scale_glu",
    "routing_soft_max": "topk_moe",
    "routing_raw": "topk_moe",
    "routing_sigmoid": "topk_moe",
    "sorted_routing_soft_max": "topk_moe",
    "sorted_routing_sigmoid": "topk_moe",
    "sorted_routing_softplus": "topk_moe",
    "sorted_routing_late": "topk_moe_late",
    "ssm_conv_silu": "ssm_conv_silu",
    "ssm_conv_add_silu": "ssm_conv_silu",
    "kept_states_1": "gated_delta_net_cpy",
    "kept_states_3": "gated_delta_net_cpy",
    "kept_states_apart": "gated_delta_net_cpy",
}
"""A pattern in each of these graphs of the kit."""


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(facts=GPU, kernels=KERNELS) as device:
        yield device


architecture = kernels.architecture


class TestCompiled(kernels.CompiledKernelTests):
    """The programs of the kit's cases, for one GPU or for each."""

    ops = OPS
    lowerings = KERNELS.ops
    facts = GPU
    limits = LIMITS

    # No case at tier smoke has rows or positions in several parts.
    @LONG
    @kernels.in_turns
    def test_each_kernel_of_any_tier_compiles_for_one_architecture(self, turn):
        launches = first_launches(self.launches("full"))

        assert compile_problems(*turn_of(launches, turn), LIMITS) == []


class TestKernels(kernels.OwnKernelTests):
    """The cases of the kit."""

    ops = OPS


TENSOR = replace(GPU, halves_from=0)
WITH_CORES = [name for name in ARCHITECTURES if int(name.removeprefix("sm_")) >= 80]
on_each_with_cores = pytest.mark.parametrize("architecture", WITH_CORES, indirect=True)
MANY_COLUMNS = [
    *[product(Arg((320, 130), t), Arg((320, 70))) for t in (tp.F16, tp.BF16, tp.Q8_0)],
    *[product(Arg((256, 20), t), Arg((256, 20))) for t in (tp.Q4_K, IQ2_XXS)],
    product(Arg((33, 70, 2), tp.F16, "permuted"), Arg((33, 20, 4), tp.BF16, "permuted")),
    *[product(Arg((64, 450), t), Arg((64, 200, 2))) for t in (tp.F16, tp.BF16, tp.Q8_0)],
    product(Arg((64, 40), tp.Q8_0), Arg((64, 40), data=uniform(-1e6, 1e6))),
    product(Arg((48, 20)), Arg((48, 20))),
]
"""Products that tensor cores compute where they may, except the last one."""
MANY_COLUMNS_OF_BLOCKS = [
    product(Arg((256, 20), t), Arg((256, columns))) for t in BLOCKS for columns in (20, 64)
]
"""Weights of blocks that are decoded in tiles, and before."""
EXPERTS = [
    product_of_experts(
        Arg(w, t), Arg(x, data=data), Arg((x[1], x[2]), tp.I32, data=integers(0, w[2]))
    )
    for t, w, x, data in [
        (tp.F16, (72, 70, 4), (72, 2, 5), UNIT),
        (tp.BF16, (33, 20, 2), (33, 1, 50), UNIT),
        (tp.Q8_0, (64, 130, 3), (64, 3, 60), uniform(-1e6, 1e6)),
        (tp.Q4_K, (256, 20, 2), (256, 2, 9), UNIT),
        (tp.F32, (40, 20, 2), (40, 2, 9), UNIT),
    ]
]
"""Tiles of 16, 32 and 64 rows of experts for tensor cores, except the last one."""


def _causal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What later tokens say is hidden, and all but the last of many positions."""
    tokens, positions = shape[-2:]
    ahead = np.arange(positions) > np.arange(tokens)[:, None] + 2
    ahead[:, -1] = False
    return np.broadcast_to(np.where(ahead, -np.inf, 0.0), shape)


CAUSAL = Data("causal", _causal)
_HEADS = [(64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (33, 7), (40, 256), (192, 24)]
_Q, _KV, _MASK = Arg((64, 9, 6, 2)), (64, 70, 3, 1), Arg((70, 9), tp.F16, data=MASK)
_LOWEST = float(np.finfo(np.float32).min)
HALF, BRAIN = 1e-6, 1e-4
"""Squared errors, as shares, of what is rounded to 11 bits and to 8."""
ATTENTION = [
    replace(case, limit=limit)
    for limit, cases in {
        HALF: [
            *[
                attention(
                    Arg((k, 20, 2)),
                    Arg((k, 70), tp.F16),
                    Arg((v, 70), tp.F16),
                    Arg((70, 20), tp.F16, data=MASK),
                )
                for k, v in _HEADS
            ],
            *[
                attention(_Q, Arg(_KV, k), Arg(_KV, v), _MASK)
                for k, v in [(tp.Q8_0, tp.Q8_0), (tp.F16, tp.Q4_0)]
            ],
            attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16)),
            attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), _MASK, Arg((6,)), softcap=5.0),
            attention(
                _Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), Arg((70, 9, 6, 2), data=MASK), max_bias=8.0
            ),
            attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), Arg((70, 9), data=among(-math.inf))),
            attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), Arg((70, 9), data=among(_LOWEST))),
            attention(
                Arg((64, 20, 2), layout="permuted"),
                Arg((64, 70, 2), tp.F16, "permuted"),
                Arg((64, 70, 2), tp.F16, "columns"),
                Arg((70, 20), tp.F16, "rows", MASK),
            ),
            attention(
                Arg((64, 90), data=uniform(-1e9, 1e9)),
                Arg((64, 200), tp.F16),
                Arg((64, 200), tp.F16),
                Arg((200, 90), tp.F16, data=CAUSAL),
                scale=1e-9,
            ),
            *[
                attention(
                    Arg((72, 70, 8)),
                    Arg((72, length, 4), tp.F16),
                    Arg((72, length, 4), tp.F16),
                    Arg((length, 70), data=CAUSAL),
                )
                for length in (256, 270)
            ],
            attention(
                Arg((64, 40)),
                Arg((64, 600), tp.F16),
                Arg((64, 600), tp.F16),
                Arg((600, 40), data=CAUSAL),
                Arg((1,)),
            ),
        ],
        BRAIN: [
            attention(_Q, Arg(_KV, tp.BF16, data=data), Arg(_KV, tp.BF16, data=data), _MASK)
            for data in (UNIT, uniform(-1e6, 1e6))
        ],
    }.items()
    for case in cases
]
"""Attention of many rows, with heads of all sizes that differ, in whole tiles and in parts."""
OTHER_ATTENTION = [
    attention(_Q, Arg(_KV), Arg(_KV), _MASK),
    attention(_Q, Arg(_KV, tp.BF16), Arg(_KV, tp.F16), _MASK),
    attention(_Q, Arg(_KV, tp.F16), Arg(_KV, tp.F16), Arg((70, 9), layout="transposed", data=MASK)),
    attention(Arg((64, 9, 6, 2), layout="transposed"), Arg(_KV, tp.F16), Arg(_KV, tp.F16), _MASK),
    attention(Arg((64, 3, 6)), Arg((64, 70, 3), tp.F16), Arg((64, 70, 3), tp.F16)),
    attention(Arg((320, 20)), Arg((320, 70), tp.F16), Arg((320, 70), tp.F16)),
]
"""Types finer than f16 or mixed, masks or queries with gaps, few rows, heads that do not fit."""
BY_CORES = {
    "products": (MANY_COLUMNS, {"mma_product", "copied_flat", "decoded", "product_tile"}),
    "experts": (EXPERTS, {"sorted_by_expert", "mma_experts", "expert_tiles"}),
    "attention": (ATTENTION, {"mma_attend", "attend_join"}),
    "other attention": (OTHER_ATTENTION, {"attend", "attend_few", "attend_join"}),
}
"""Cases, and the kernels that compute them."""


@pytest.mark.parametrize("what", BY_CORES)
def test_tensor_cores_compute_what_they_can(what):
    cases, kernels = BY_CORES[what]

    assert {launch.kernel.name for launch in launches_of(cases, TENSOR, KERNELS.ops)} == kernels


@needs_nvrtc
@on_each_with_cores
@pytest.mark.parametrize("what", ["products", "experts", "attention"])
@LONG
def test_kernels_for_tensor_cores_compile(what, architecture):
    launches = launches_of(BY_CORES[what][0], TENSOR, KERNELS.ops)

    assert compile_problems(launches, architecture, LIMITS) == []


@needs_nvrtc
@SLOW
@on_each_with_cores
def test_programs_for_tensor_cores_compile_by_themselves(architecture):
    cases = [case for cases, _ in BY_CORES.values() for case in cases]
    launches = launches_of([*cases, *MANY_COLUMNS_OF_BLOCKS], TENSOR, KERNELS.ops)

    assert alone_problems(launches, architecture, LIMITS) == []


@needs_emulator
@pytest.mark.slow
def test_products_of_all_blocks_by_tensor_cores_are_those_of_the_reference():
    with EmulatedDevice(facts=TENSOR, kernels=KERNELS) as device:
        assert emulation_problems(device, MANY_COLUMNS_OF_BLOCKS) == []


@needs_emulator
@in_each_order_at_leisure
@pytest.mark.parametrize("what", BY_CORES)
def test_results_of_tensor_cores_are_those_of_the_reference(what, order):
    with EmulatedDevice(facts=TENSOR, kernels=KERNELS) as device:
        assert emulation_problems(device, BY_CORES[what][0], order) == []


@pytest.mark.parametrize(
    ("precision", "kernels"), [("default", ["rounded", "matvec"]), ("f32", ["warp_product"])]
)
def test_columns_of_exact_products_are_not_rounded_to_bytes(precision, kernels):
    w, x = tp.input("w", (8, 64), tp.Q8_0), tp.input("x", (3, 64), tp.F32)

    program = lower(tp.mul_mat(w, x, precision=precision), GPU, KERNELS.ops)

    assert [launch.kernel.name for launch in program.launches] == kernels


@needs_emulator
@LONG
def test_products_without_rounded_activations_are_as_near_as_those_of_floats():
    cases = [replace(case, limit=1e-7) for case in select("smoke", ops=["mul_mat", "mul_mat_id"])]
    facts = replace(GPU, int8_activations=False)

    with EmulatedDevice(facts=facts, kernels=KERNELS) as device:
        assert emulation_problems(device, supported(device, cases)) == []


@pytest.fixture
def trial(request) -> Iterator[Trial]:
    """A graph of the kit on an emulated device that fuses."""
    with (
        EmulatedDevice(facts=GPU, kernels=KERNELS) as device,
        CPUDevice("cpu:kit") as cpu,
        cpu.open() as fallback,
    ):
        work = Rig(device)
        yield Trial(work, fallback, request.param)
        work.close()


def groups_of(trial: Trial) -> list[Group]:
    """What of the graph is fused."""
    device = trial.backend.device
    return list(find_groups(trial.graph, device.fusions, device.refuses_group))


in_fused_graphs = pytest.mark.parametrize(
    ("trial", "pattern"), FUSED.items(), ids=FUSED, indirect=["trial"]
)
on_each_architecture_at_leisure = pytest.mark.parametrize(
    ("trial", "architecture"),
    [
        pytest.param(name, architecture, marks=LONG if i % len(ARCHITECTURES) == j else SLOW)
        for i, name in enumerate(FUSED)
        for j, architecture in enumerate(ARCHITECTURES)
    ],
    indirect=True,
)


@needs_emulator
@in_each_order_at_leisure
@in_fused_graphs
def test_fused_nodes_compute_what_the_reference_does(trial, pattern, order):
    trial.backend.device.emulator.order = order

    trial.check(trial.graph, dict.fromkeys(trial.nodes, trial.backend))

    assert pattern in [group.pattern.name for group in groups_of(trial)]


@needs_nvrtc
@on_each_architecture_at_leisure
def test_fused_kernels_compile(trial, architecture):
    programs = [trial.backend.device.lower_work(group) for group in groups_of(trial)]
    launches = [launch for program in programs for launch in program.launches]

    assert compile_problems(launches, architecture, LIMITS) == []


def test_every_fusion_has_a_graph():
    assert set(FUSED.values()) == KERNELS.groups.keys()
