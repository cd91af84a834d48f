"""The kernels that only this backend has: emulated against the float64 reference; their texts.

Nothing here ran on a GPU, nothing was compiled by Apple's compiler, and none of it needs PyObjC.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import tensorplug_emulator as emulator
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import emulation_problems, supported
from tensorplug_emulator.metal import emulated_metal, expanded
from tensorplug_emulator.msl_rules import problems
from tensorplug_emulator.suites.kernels import MetalTextTests, OwnKernelTests, of_two_tiers
from tensorplug_metal.kernels import KERNELS
from tensorplug_simt.dialects.metal import metal_source
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(emulator.missing()), reason=emulator.missing())
OPS = sorted(KERNELS.own)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with emulated_metal(KERNELS) as device:
        yield device


class TestKernels(OwnKernelTests):
    """The cases of the kit."""

    ops = OPS


@pytest.mark.long
def test_products_are_as_near_as_those_of_floats(device):
    cases = [replace(case, limit=1e-7) for case in select("smoke", ops=["mul_mat", "mul_mat_id"])]

    assert emulation_problems(device, supported(device, cases)) == []


class TestTexts(MetalTextTests):
    """Their texts."""

    ops = OPS
    lowerings = KERNELS.ops

    @of_two_tiers
    def test_no_text_breaks_a_rule_of_apples_compiler(self, tier):
        texts = map(metal_source, self.launches(tier))

        assert [line for text in texts for line in problems(expanded(text))] == []
