"""Kernels of a table of lowerings: compiled by NVIDIA's compiler, emulated, and read by clang."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from tensorplug_emulator import Order, missing, nvrtc, spaces
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_emulator.evidence import (
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
from tensorplug_emulator.spaces import space_problems
from tensorplug_simt.dialects.metal import APPLE, metal_source
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import SHARED, Lowering
from tensorplug_simt.program import Launch
from tensorplug_testing.tiers import select

in_each_order = pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
in_turns = pytest.mark.parametrize("turn", range(len(ARCHITECTURES)))
on_each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, indirect=True)
of_two_tiers = pytest.mark.parametrize(
    "tier",
    [pytest.param("smoke", marks=pytest.mark.long), pytest.param("full", marks=pytest.mark.slow)],
)


@pytest.fixture
def architecture(request: pytest.FixtureRequest) -> str:
    """A generation of GPUs; skips where the compiler does not know it."""
    name: str = request.param
    if not known(name):
        pytest.skip(f"this compiler does not know {name}")
    return name


class LaunchSuite:
    """A suite over the launches of the kit's cases."""

    ops: ClassVar[Sequence[str]] = ()
    """Those with kernels in the table; empty for all ops."""
    lowerings: ClassVar[Mapping[str, Lowering]] = SHARED
    facts: ClassVar[Facts]
    least: ClassVar[Mapping[str, int]] = {}
    """There are more launches or cases than this, by tier."""

    def launches(self, tier: str) -> list[Launch]:
        """One launch of each program of a tier."""
        found = launches_of(select(tier, ops=self.ops), self.facts, self.lowerings)
        assert len(found) > self.least.get(tier, 0)
        return found


@pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
class CompiledKernelTests(LaunchSuite):
    """Kernels in CUDA C++ compile within limits, for GPUs that need not be there.

    The test module has the fixture `architecture` of this one.
    """

    limits: ClassVar[Limits]

    @in_turns
    def test_each_kernel_compiles_for_one_architecture(self, turn: int) -> None:
        launches = first_launches(self.launches("smoke"))

        assert compile_problems(*turn_of(launches, turn), self.limits) == []

    @pytest.mark.long
    @in_turns
    def test_each_quick_program_compiles_for_one_architecture(self, turn: int) -> None:
        launches = self.launches("smoke")

        assert compile_problems(*turn_of(launches, turn), self.limits) == []

    @pytest.mark.slow
    @in_turns
    def test_every_program_compiles_by_itself_as_a_device_compiles_it(self, turn: int) -> None:
        launches = self.launches("full")

        assert alone_problems(*turn_of(launches, turn), self.limits) == []

    @pytest.mark.slow
    @on_each_architecture
    def test_every_program_compiles(self, architecture: str) -> None:
        launches = self.launches("full")

        assert compile_problems(launches, architecture, self.limits) == []


class MetalTextTests(LaunchSuite):
    """Kernels in Metal Shading Language, as clang reads them."""

    facts = APPLE
    steps: ClassVar[Mapping[str, int]] = {}
    """Launches of a tier of which one is checked; all of them where the tier is not named."""

    @pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
    @of_two_tiers
    def test_clang_finds_no_wrong_address_space(self, tier: str) -> None:
        launches = self.launches(tier)[:: self.steps.get(tier, 1)]

        assert [line for each in launches for line in space_problems(metal_source(each))] == []


@pytest.mark.skipif(bool(missing()), reason=missing())
class KernelTests:
    """Emulated kernels give what the float64 reference gives; all their accesses are checked.

    The test module has the fixture `device`.
    """

    ops: ClassVar[Sequence[str]] = ()
    """Those with kernels in the table; empty for all ops."""
    least: ClassVar[Mapping[str, int]] = {}
    """There are more cases than this, by tier, and by `first` of the first ones."""
    step: ClassVar[int] = 1
    """Sets of kernels of which one computes its first case."""

    def problems(self, device: EmulatedDevice, tier: str, order: Order) -> list[str]:
        """What is wrong with the results of a tier's cases."""
        cases = supported(device, select(tier, ops=self.ops))
        assert len(cases) > self.least.get(tier, 0)
        return emulation_problems(device, cases, order)

    @in_each_order
    def test_each_kernel_computes_its_first_case(
        self, device: EmulatedDevice, order: Order
    ) -> None:
        cases = first_cases(device, select("smoke", ops=self.ops))[:: self.step]

        assert len(cases) > self.least.get("first", 0)
        assert emulation_problems(device, cases, order) == []

    @pytest.mark.long
    @in_each_order
    def test_kernels_compute_the_cases_of_the_kit(
        self, device: EmulatedDevice, order: Order
    ) -> None:
        assert self.problems(device, "smoke", order) == []


class OwnKernelTests(KernelTests):
    """Kernels that one backend has, which are few enough for further cases."""

    # No case at tier smoke has many rows of attention, or rows and positions in several parts.
    @pytest.mark.long
    @in_each_order
    def test_each_kernel_of_any_tier_computes_its_first_case(
        self, device: EmulatedDevice, order: Order
    ) -> None:
        cases = first_cases(device, select("full", ops=self.ops))

        assert emulation_problems(device, cases, order) == []

    @pytest.mark.slow
    @in_each_order
    def test_kernels_compute_more_cases_of_the_kit(
        self, device: EmulatedDevice, order: Order
    ) -> None:
        assert self.problems(device, "ci", order) == []

    @pytest.mark.slow
    def test_kernels_compute_every_case_of_the_kit_in_one_order(
        self, device: EmulatedDevice
    ) -> None:
        assert self.problems(device, "full", Order.SHUFFLED) == []
