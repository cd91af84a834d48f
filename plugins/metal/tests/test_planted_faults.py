"""Faults planted in the texts of kernels: the emulator or the rules find each of them."""

import pytest

import tensorplug_emulator as emulator
from tensorplug.dtypes import IQ4_NL
from tensorplug_emulator import spaces
from tensorplug_emulator.evidence import emulation_problems, first_cases, launches_of
from tensorplug_emulator.metal import emulated_metal, expanded
from tensorplug_emulator.msl_rules import problems
from tensorplug_emulator.spaces import space_problems
from tensorplug_metal.kernels import KERNELS
from tensorplug_simt import source
from tensorplug_simt.dialects.metal import APPLE, metal_source
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())
needs_clang = pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())

BARRIER = "#define LOCAL_BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)"
OF_SIMDGROUP = "simdgroup_barrier(mem_flags::mem_threadgroup);"
EDGE = "if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) store_f32"
MEAN = "float mean = 0.0f;"
NO_BARRIER = "with no barrier between"


@pytest.fixture
def planted(monkeypatch):
    """Changes all texts from here on."""

    def plant(before, after):
        read, found = source.read_resource, []

        def changed(where):
            text = read(where)
            found.extend([where] * (before in text))
            return text.replace(before, after)

        monkeypatch.setattr(source, "read_resource", changed)
        source.sections.cache_clear()
        return found

    yield plant
    source.sections.cache_clear()


@pytest.mark.parametrize(
    ("op", "before", "after", "message"),
    [
        ("argsort", BARRIER, "#define LOCAL_BARRIER", NO_BARRIER),
        ("argsort", BARRIER, BARRIER.replace("threadgroup)", "device)"), NO_BARRIER),
        ("mul_mat", BARRIER, "#define LOCAL_BARRIER", NO_BARRIER),
        ("mul_mat", OF_SIMDGROUP, "", NO_BARRIER),
        ("mul_mat", EDGE, "store_f32", "both write"),
        ("flash_attn_ext", BARRIER, "#define LOCAL_BARRIER", NO_BARRIER),
        ("rms_norm", MEAN, f"if (ITEM_X < 8) return; {MEAN}", "divergent barrier"),
    ],
)
def test_fault_in_a_kernel_is_found(planted, op, before, after, message):
    found = planted(before, after)
    with emulated_metal(KERNELS) as device:
        faults = emulation_problems(device, first_cases(device, select("full", ops=[op])))

    assert found
    assert any(message in fault for fault in faults)


@needs_clang
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LOCAL_POINTER float* kept = edge", "GLOBAL float* kept = edge"),
        ("#define TABLE constant", "#define TABLE device const"),
        ("GLOBAL const uchar* w = ROW(w, inside", "LOCAL_POINTER const uchar* w = ROW(w, inside"),
    ],
)
def test_wrong_address_space_is_found(planted, before, after):
    found = planted(before, after)
    launches = launches_of(select("full", ops=["mul_mat"]), APPLE, KERNELS.ops)
    tiled = (each for each in launches if each.kernel.name == "tiled_product")
    text = next(metal_source(each) for each in tiled if each.types["w"] is IQ4_NL)

    assert found
    assert [*space_problems(text), *problems(expanded(text))] != []
