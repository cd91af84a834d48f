"""Faults planted in the kernels for tensor cores: the emulator finds each of them."""

from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
import tensorplug_emulator as emulator
from tensorplug_cuda.kernels import KERNELS
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import emulation_problems
from tensorplug_simt import source
from tensorplug_simt.facts import Facts
from tensorplug_testing.cases import Arg
from tensorplug_testing.cases.attention import attention
from tensorplug_testing.cases.case import Data, integers, uniform
from tensorplug_testing.cases.matmul import product, product_of_experts

pytestmark = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())

TENSOR = Facts(wide=False, max_group=1024, subgroup=32, subgroup_required=True, halves_from=0)


def _last(_rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Only the last token sees what comes after many positions."""
    hidden = np.arange(shape[-1]) >= np.where(np.arange(shape[-2]) < shape[-2] - 1, 32, 99)[:, None]
    return np.broadcast_to(np.where(hidden, -np.inf, 0.0), shape)


def _far(_rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positions far apart, which are told about by different words, and zeros between others."""
    at = np.arange(shape[-1])
    hidden = (at >= 24) & (at < 530)
    return np.broadcast_to(np.where(hidden, -np.inf, np.where(at == 17, 1.0, 0.0)), shape)


_KV = Arg((88, 70), tp.F16, data=uniform(-3, 3))
_MASKED = attention(Arg((88, 20, 3)), _KV, _KV, Arg((70, 20), tp.F16, data=Data("last", _last)))
_OPEN = attention(Arg((33, 20), data=uniform(-1e6, 1e6)), *[Arg((33, 70), tp.F16)] * 2, scale=1e-6)
_FAR = attention(
    Arg((16, 16, 2)),
    Arg((16, 548, 2), tp.F16),
    Arg((136, 548, 2), tp.F16),
    Arg((548, 16), data=Data("far", _far)),
)
CASES = {
    "attention": [replace(case, limit=1e-6, rounded=0) for case in (_MASKED, _OPEN, _FAR)],
    "product": [product(Arg((64, 70), tp.F16), Arg((64, 20)))],
    "experts": [
        product_of_experts(
            Arg((40, 70, 3), tp.F16), Arg((40, 3, 20)), Arg((3, 20), tp.I32, data=integers(0, 3))
        )
    ],
}
FAULTS = [
    ("attention", "    COPIED;\n    LOCAL_BARRIER;", "    LOCAL_BARRIER;"),
    ("attention", "FETCH(after, turn ^ 1)", "FETCH(after, turn)"),
    ("attention", "    COPIED;\n    LOCAL_BARRIER;", "    COPIED;"),
    ("attention", "some |= found[0][i];", "some |= found[0][0];"),
    ("attention", "    LOCAL_BARRIER;\n    some = adds = 0;", "    some = adds = 0;"),
    ("attention", "all_plain &= ~adds;", ""),
    ("attention", "FIRST_BITS(length / AT_ONCE)", "seen"),
    ("attention", "quads * PER + lane", "(quads * PER + 32) / 32 * 32 + lane"),
    ("attention", "span += SPAN;", "span = stop;"),
    ("attention", "shrink[0] != 1.0f || ", ""),
    ("attention", "most = fmax(most, __shfl_xor_sync(WHOLE_WARP, most, 2));", ""),
    ("attention", "sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);", ""),
    ("attention", "at < stop ? sum", "1 ? sum"),
    ("attention", "if (d < DV)", ""),
    ("attention", "fitting = BITS_FLOAT((uint)(254 - bounded) << 23);", ""),
    ("attention", "TOKEN(ROWS - 1) - TOKEN(0) + 1", "TOKEN(ROWS - 1) - TOKEN(0)"),
    ("attention", "ITEM_X % 8 + ITEM_X % 32 / 16 * 8", "ITEM_X % 16"),
    ("attention", "lane % 4 * 2 + 1)", "lane % 4 * 2)"),
    ("product", "COPIED; \\\n    LOCAL_BARRIER;", "LOCAL_BARRIER;"),
    ("product", "LOCAL_BARRIER; \\\n    /* Load the next", "/* Load the next"),
    ("product", "start + DEEP, turn ^ 1", "start + DEEP, turn"),
    ("product", "if (i0 < down && j < columns)", ""),
    ("product", "ITEM_X % 32 / 16]", "ITEM_X / 8 % 2]"),
    ("experts", "const int depth = expert < p.w.ne[2] ? p.x.ne[0] : 0;", "const int depth = 32;"),
    ("experts", "if (i0 < down && j < columns)", "if (i0 < down)"),
]


@pytest.mark.parametrize(("what", "before", "after"), FAULTS)
def test_fault_in_a_kernel_for_tensor_cores_is_found(monkeypatch, what, before, after):
    read, found = source.read_resource, []

    def changed(where):
        text = read(where)
        found.extend([where] * (before in text))
        return text.replace(before, after)

    monkeypatch.setattr(source, "read_resource", changed)
    source.sections.cache_clear()
    try:
        with EmulatedDevice(facts=TENSOR, kernels=KERNELS) as device:
            problems = emulation_problems(device, CASES[what])
    finally:
        source.sections.cache_clear()

    assert found
    assert problems


def test_without_a_fault_there_is_no_problem():
    with EmulatedDevice(facts=TENSOR, kernels=KERNELS) as device:
        assert (
            emulation_problems(device, [case for cases in CASES.values() for case in cases]) == []
        )
