"""The shared kernels in CUDA C++, compiled by NVIDIA's compiler for GPUs that need not be there.

That is all: nothing here ran. Limits are of registers, spills and local memory.
"""

from collections.abc import Iterable

import pytest

from tensorplug.errors import DeviceError
from tensorplug.testing.cases import node_of
from tensorplug.testing.tiers import select
from tensorplug_simt import families, nvrtc  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.cuda import cuda_options
from tensorplug_simt.dialects.dialect import CUDA
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower
from tensorplug_simt.nvrtc import Usage, compiled
from tensorplug_simt.packing import Piece, pieces
from tensorplug_simt.program import Launch, Program

pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
GPU = Facts(wide=False, subgroup=32, fp16=True, fp64=True, int_dot=True)

REGISTERS = 64
MORE_REGISTERS = {
    # Blocks of 256 values, or rows of states, which an item has for itself.
    "attend_back_columns": 128,
    "attend_back_rows": 128,
    "blocks_added": 255,
    "blocks_copied": 255,
    "blocks_put": 255,
    "gated_delta_net": 255,
    "gated_linear_attn": 255,
    "lightning_indexer": 255,
    "rwkv_wkv6": 255,
    "rwkv_wkv7": 255,
}
SPILLED = {"blocks_put": 256, "blocks_copied": 256, "lightning_indexer": 256}
"""Bytes; all other kernels spill none."""
LOCAL_MEMORY = 48 * 1024
FILE_OF_REGISTERS = 65536
"""Of a multiprocessor: a group that takes more cannot be launched."""


def _launches(tier: str) -> list[Launch]:
    """One launch of each program that the cases of a tier are lowered to."""
    programs = (lower(node_of(case), GPU) for case in select(tier))
    found = [launch for p in programs if isinstance(p, Program) for launch in p.launches]
    return list({launch.variant: launch for launch in found}.values())


def _firsts(launches: Iterable[Launch]) -> list[Launch]:
    """The first launch of each kernel."""
    found: dict[str, Launch] = {}
    for launch in launches:
        found.setdefault(launch.kernel.name, launch)
    return list(found.values())


def _too_much(piece: Piece, usage: Usage) -> list[str]:
    """Which limits a kernel passes."""
    x, y, z = piece.launch.local
    name = piece.launch.kernel.name
    rules = {
        "registers": (usage.registers, MORE_REGISTERS.get(name, REGISTERS)),
        "spilled bytes": (usage.spilled, SPILLED.get(name, 0)),
        "bytes of local memory": (usage.local, LOCAL_MEMORY),
        "registers of a group": (-(-usage.registers // 8) * 8 * x * y * z, FILE_OF_REGISTERS),
    }
    where = f"{usage.name} for {usage.architecture}"
    return [f"{where}: {n} {what}, {most} at most" for what, (n, most) in rules.items() if n > most]


def _problems(launches: list[Launch], architecture: str) -> list[str]:
    """Compile as few texts as options allow; what is missing of them, or too much."""
    every = pieces(launches, CUDA)
    problems = []
    for options in {cuda_options(piece.launch) for piece in every}:
        part = {piece.name: piece for piece in every if cuda_options(piece.launch) == options}
        text = "".join(piece.text for piece in part.values())
        usages = {usage.name: usage for usage in compiled(text, architecture, options)}
        problems += [f"{name} is not among the compiled" for name in part if name not in usages]
        problems += [line for name in usages for line in _too_much(part[name], usages[name])]
    return problems


@pytest.mark.parametrize("turn", range(4), ids=ARCHITECTURES)
def test_each_kernel_compiles_for_one_architecture(turn):
    launches = _firsts(_launches("smoke"))[turn::4]

    assert _problems(launches, ARCHITECTURES[turn]) == []


@pytest.mark.long
@pytest.mark.parametrize("turn", range(4), ids=ARCHITECTURES)
def test_each_quick_program_compiles_for_one_architecture(turn):
    launches = _launches("smoke")[turn::4]

    assert _problems(launches, ARCHITECTURES[turn]) == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_program_compiles(architecture):
    launches = _launches("full")

    problems = _problems(launches, architecture)

    assert len(launches) > 1000
    assert problems == []


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
