"""The shared kernels in CUDA C++, compiled by NVIDIA's compiler for GPUs that need not be there.

That is all: nothing here ran. Limits are of registers, spills and local memory.
"""

import pytest

from tensorplug.device import DeviceError
from tensorplug_emulator import nvrtc
from tensorplug_emulator.evidence import (
    Limits,
    alone_problems,
    compile_problems,
    launches_of,
)
from tensorplug_emulator.nvrtc import compiled
from tensorplug_emulator.suites import kernels
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.cuda import cuda_options, cuda_source
from tensorplug_simt.facts import Facts
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())

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
        "rows_put": 72,  # for sm_100
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


architecture = kernels.architecture


class TestCompiled(kernels.CompiledKernelTests):
    """All of them, for one GPU or for each."""

    facts = GPU
    limits = LIMITS
    least = {"full": 1000}


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
