"""The shared kernels in CUDA C++, compiled by NVIDIA's compiler for GPUs that need not be there.

That is all: nothing here ran. Limits are of registers, spills and local memory.
"""

import pytest

from tensorplug.device import DeviceError
from tensorplug_emulator import nvrtc
from tensorplug_emulator.evidence import (
    ARCHITECTURES,
    Limits,
    alone_problems,
    compile_problems,
    first_launches,
    known,
    launches_of,
    turn_of,
)
from tensorplug_emulator.nvrtc import compiled
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source
from tensorplug_simt.facts import Facts
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
in_turns = pytest.mark.parametrize("turn", range(len(ARCHITECTURES)))

GPU = Facts(wide=False, subgroup=32, fp16=True, fp64=True, int_dot=True)
LIMITS = Limits(
    registers=64,
    # Blocks of 256 values, or rows of states, which an item has for itself.
    more_registers={
        "attend": 255,
        "attend_back_columns": 255,
        "attend_back_rows": 255,
        "blocks_added": 255,
        "blocks_copied": 255,
        "blocks_put": 255,
        "dsv4_hc_comb": 128,
        "gated_delta_net": 255,
        "gated_linear_attn": 255,
        "lightning_indexer": 255,
        "product": 128,
        "product_tile": 160,  # for sm_70
        "rwkv_wkv6": 255,
        "rwkv_wkv7": 255,
        "ssm_scan": 255,
    },
    spilled={
        "attend_back_columns": 640,  # heads of 61 elements
        "attend_back_rows": 128,
        "blocks_put": 256,
        "blocks_copied": 256,
        "lightning_indexer": 256,
        "rwkv_wkv7": 64,  # for sm_70
    },
)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    """A generation of GPUs; skips where the compiler does not know it."""
    if not known(request.param):
        pytest.skip(f"this compiler does not know {request.param}")
    return request.param


@in_turns
def test_each_kernel_compiles_for_one_architecture(turn):
    launches = first_launches(launches_of(select("smoke"), GPU))

    assert compile_problems(*turn_of(launches, turn), LIMITS) == []


@pytest.mark.long
@in_turns
def test_each_quick_program_compiles_for_one_architecture(turn):
    launches = launches_of(select("smoke"), GPU)

    assert compile_problems(*turn_of(launches, turn), LIMITS) == []


@pytest.mark.slow
@in_turns
def test_every_program_compiles_by_itself_as_a_device_compiles_it(turn):
    launches = launches_of(select("full"), GPU)

    assert alone_problems(*turn_of(launches, turn), LIMITS) == []


@pytest.mark.slow
def test_every_program_compiles(architecture):
    launches = launches_of(select("full"), GPU)

    assert len(launches) > 1000
    assert compile_problems(launches, architecture, LIMITS) == []


@pytest.mark.parametrize(("parts", "folded"), [(4, False), (0, True), (4, True)])
def test_launches_merged_and_grids_folded_compile(parts, folded):
    (launch,) = launches_of(select("smoke", ops=["sum_rows"], pattern="f32")[:1], GPU)
    text = cuda_source(launch, parts=parts, folded=folded)

    (usage,) = compiled(text, "sm_90", cuda_options(launch))

    assert (usage.stack, usage.spilled) == (0, 0)


def test_what_does_not_compile_is_an_error_with_the_log():
    with pytest.raises(DeviceError, match='identifier "nothing" is undefined'):
        compiled('extern "C" __global__ void wrong() { nothing(); }', "sm_90")


def test_usage_tells_registers_and_local_memory():
    text = """extern "C" __global__ void kept(float* x) {
      __shared__ float row[64];
      row[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = row[63 - threadIdx.x];
    }"""

    (usage,) = compiled(text, "sm_90")

    assert (usage.name, usage.architecture) == ("kept", "sm_90")
    assert (usage.stack, usage.spilled, usage.local) == (0, 0, 256)
    assert usage.registers > 4


@pytest.mark.parametrize(
    ("problems", "name"),
    [(compile_problems, "summed_rows_0"), (alone_problems, "tp_summed_rows")],
    ids=["packed", "alone"],
)
def test_limits_name_what_is_passed(problems, name):
    (launch,) = launches_of(select("smoke", ops=["sum_rows"], pattern="f32")[:1], GPU)

    (problem,) = problems([launch], "sm_90", Limits(registers=8))

    assert problem.startswith(f"{name} {{")
    assert problem.endswith(" registers, at most 8")
