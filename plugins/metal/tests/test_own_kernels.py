"""The kernels that only this backend has: emulated against the float64 reference; their texts.

Nothing here ran on a GPU, nothing was compiled by Apple's compiler, and none of it needs PyObjC.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import tensorplug_emulator as emulator
from tensorplug_emulator import Order, spaces
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import emulation_problems, first_cases, launches_of, supported
from tensorplug_emulator.metal import emulated_metal, expanded
from tensorplug_emulator.msl_rules import problems
from tensorplug_emulator.spaces import space_problems
from tensorplug_metal.kernels import KERNELS
from tensorplug_simt.dialects.metal import APPLE, metal_source
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())
needs_clang = pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
in_each_order = pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
of_two_tiers = pytest.mark.parametrize(
    "tier",
    [pytest.param("smoke", marks=pytest.mark.long), pytest.param("full", marks=pytest.mark.slow)],
)

OPS = sorted(KERNELS.own)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with emulated_metal(KERNELS) as device:
        yield device


# No case at tier smoke has many rows of attention, or rows and positions in several parts.
@pytest.mark.parametrize("tier", ["smoke", pytest.param("full", marks=pytest.mark.long)])
def test_each_kernel_computes_its_first_case(device, tier):
    cases = first_cases(device, select(tier, ops=OPS))

    assert emulation_problems(device, cases, Order.SHUFFLED) == []


@pytest.mark.parametrize(
    "tier",
    [pytest.param("smoke", marks=pytest.mark.long), pytest.param("ci", marks=pytest.mark.slow)],
)
@in_each_order
def test_kernels_compute_the_cases_of_the_kit(device, order, tier):
    cases = supported(device, select(tier, ops=OPS))

    assert emulation_problems(device, cases, order) == []


@pytest.mark.slow
def test_kernels_compute_every_case_of_the_kit_in_one_order(device):
    cases = supported(device, select("full", ops=OPS))

    assert emulation_problems(device, cases, Order.SHUFFLED) == []


@pytest.mark.long
def test_products_are_as_near_as_those_of_floats(device):
    cases = [replace(case, limit=1e-7) for case in select("smoke", ops=["mul_mat", "mul_mat_id"])]

    assert emulation_problems(device, supported(device, cases)) == []


@of_two_tiers
def test_no_text_breaks_a_rule_of_apples_compiler(tier):
    texts = [metal_source(each) for each in launches_of(select(tier, ops=OPS), APPLE, KERNELS.ops)]

    assert [line for text in texts for line in problems(expanded(text))] == []


@needs_clang
@of_two_tiers
def test_clang_finds_no_wrong_address_space(tier):
    texts = [metal_source(each) for each in launches_of(select(tier, ops=OPS), APPLE, KERNELS.ops)]

    assert [line for text in texts for line in space_problems(text)] == []
