"""The kernels of this backend alone: compiled for four generations of GPUs, and emulated.

Nothing here ran on a GPU, and none of it needs CuPy.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import tensorplug as tp
from tensorplug.fusion import Group
from tensorplug.matching import find_groups
from tensorplug.testing.cases import Arg
from tensorplug.testing.cases.matmul import BLOCKS, product
from tensorplug.testing.suites.graphs import Trial
from tensorplug.testing.suites.work import Work
from tensorplug.testing.tiers import select
from tensorplug_cpu.device import CPUDevice
from tensorplug_cuda.kernels import GROUPS, LOWERINGS
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt import emulator, nvrtc
from tensorplug_simt.emulator import Order
from tensorplug_simt.emulator.device import EmulatedDevice
from tensorplug_simt.evidence import (
    ARCHITECTURES,
    Limits,
    alone_problems,
    compile_problems,
    emulation_problems,
    first_cases,
    first_launches,
    known,
    launches_of,
    supported,
    turn_of,
)
from tensorplug_simt.facts import Facts

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
needs_emulator = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())
in_turns = pytest.mark.parametrize("turn", range(len(ARCHITECTURES)))
on_each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, indirect=True)
in_each_order = pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())

LONG = pytest.mark.long
SLOW = pytest.mark.slow
in_each_order_at_leisure = pytest.mark.parametrize(
    "order",
    [pytest.param(order, marks=LONG if order is Order.SHUFFLED else SLOW) for order in Order],
    ids=lambda order: order.name.lower(),
)
OPS = sorted(OWN)
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
        "chain": 80,
        "expert_tiles": 72,  # for sm_70
        "matvec": 160,
        "mma_product": 128,
        "tiled_product": 128,
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
    with EmulatedDevice(facts=GPU, lowerings=LOWERINGS) as device:
        yield device


@pytest.fixture
def architecture(request):
    """A generation of GPUs; skips where the compiler does not know it."""
    if not known(request.param):
        pytest.skip(f"this compiler does not know {request.param}")
    return request.param


# No case at tier smoke has rows or positions in several parts.
in_two_tiers = pytest.mark.parametrize("tier", ["smoke", pytest.param("full", marks=LONG)])


@needs_nvrtc
@in_turns
@in_two_tiers
def test_each_kernel_compiles_for_one_architecture(turn, tier):
    launches = first_launches(launches_of(select(tier, ops=OPS), GPU, LOWERINGS))

    assert compile_problems(*turn_of(launches, turn), LIMITS) == []


@needs_nvrtc
@LONG
@in_turns
def test_each_quick_program_compiles_for_one_architecture(turn):
    launches = launches_of(select("smoke", ops=OPS), GPU, LOWERINGS)

    assert compile_problems(*turn_of(launches, turn), LIMITS) == []


@needs_nvrtc
@SLOW
@in_turns
def test_every_program_compiles_by_itself_as_a_device_compiles_it(turn):
    launches = launches_of(select("full", ops=OPS), GPU, LOWERINGS)
    launches += launches_of([*MANY_COLUMNS, *MANY_COLUMNS_OF_BLOCKS], TENSOR, LOWERINGS)

    assert alone_problems(*turn_of(launches, turn), LIMITS) == []


@needs_nvrtc
@SLOW
@on_each_architecture
def test_every_program_compiles(architecture):
    launches = launches_of(select("full", ops=OPS), GPU, LOWERINGS)

    assert compile_problems(launches, architecture, LIMITS) == []


@needs_emulator
@in_each_order
@in_two_tiers
def test_each_kernel_computes_its_first_case(device, order, tier):
    cases = first_cases(device, select(tier, ops=OPS))

    assert emulation_problems(device, cases, order) == []


@needs_emulator
@pytest.mark.parametrize(
    "tier", [pytest.param("smoke", marks=LONG), pytest.param("ci", marks=pytest.mark.slow)]
)
@in_each_order
def test_kernels_compute_the_cases_of_the_kit(device, order, tier):
    cases = supported(device, select(tier, ops=OPS))

    assert emulation_problems(device, cases, order) == []


@needs_emulator
@pytest.mark.slow
def test_kernels_compute_every_case_of_the_kit_in_one_order(device):
    cases = supported(device, select("full", ops=OPS))

    assert emulation_problems(device, cases, Order.SHUFFLED) == []


TENSOR = replace(GPU, choices={"products": "tensor"})
MANY_COLUMNS = [
    *[product(Arg((320, 130), t), Arg((320, 70))) for t in (tp.F16, tp.BF16, tp.Q8_0)],
    *[product(Arg((256, 20), t), Arg((256, 20))) for t in (tp.Q4_K, tp.IQ2_XXS)],
    product(Arg((33, 70, 2), tp.F16, "permuted"), Arg((33, 20, 4), tp.BF16, "permuted")),
    product(Arg((48, 20)), Arg((48, 20))),
]
"""Products that tensor cores compute where they may, but for the last one."""
MANY_COLUMNS_OF_BLOCKS = [product(Arg((256, 20), t), Arg((256, 20))) for t in BLOCKS]


@needs_nvrtc
@on_each_architecture
@LONG
def test_products_by_tensor_cores_compile(architecture):
    launches = launches_of(MANY_COLUMNS, TENSOR, LOWERINGS)

    names = {launch.kernel.name for launch in launches}
    assert names == {"mma_product", "tiled_product"}
    assert compile_problems(launches, architecture, LIMITS) == []


@needs_nvrtc
@pytest.mark.slow
@on_each_architecture
def test_products_of_all_blocks_by_tensor_cores_compile(architecture):
    launches = launches_of(MANY_COLUMNS_OF_BLOCKS, TENSOR, LOWERINGS)

    assert compile_problems(launches, architecture, LIMITS) == []


@needs_emulator
@pytest.mark.slow
def test_products_of_all_blocks_by_tensor_cores_are_those_of_the_reference():
    with EmulatedDevice(facts=TENSOR, lowerings=LOWERINGS) as device:
        assert emulation_problems(device, MANY_COLUMNS_OF_BLOCKS) == []


@needs_emulator
@in_each_order_at_leisure
def test_products_by_tensor_cores_are_those_of_the_reference(order):
    with EmulatedDevice(facts=TENSOR, lowerings=LOWERINGS) as device:
        assert emulation_problems(device, MANY_COLUMNS, order) == []


@needs_emulator
@LONG
def test_products_without_rounded_activations_are_as_near_as_those_of_floats():
    cases = [replace(case, limit=1e-7) for case in select("smoke", ops=["mul_mat", "mul_mat_id"])]
    facts = replace(GPU, int8_activations=False)

    with EmulatedDevice(facts=facts, lowerings=LOWERINGS) as device:
        assert emulation_problems(device, supported(device, cases)) == []


@pytest.fixture
def trial(request) -> Iterator[Trial]:
    """A graph of the kit on an emulated device that fuses."""
    with (
        EmulatedDevice(facts=GPU, lowerings=LOWERINGS, group_lowerings=GROUPS) as device,
        CPUDevice("cpu:kit") as cpu,
        cpu.open() as fallback,
    ):
        work = Work(device)
        yield Trial(work, fallback, request.param)
        work.close()


def groups_of(trial: Trial) -> list[Group]:
    """What of the graph is fused."""
    device = trial.backend.device
    return list(find_groups(trial.graph, device.fusions, device.supports_group))


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
    assert set(FUSED.values()) == GROUPS.keys()
