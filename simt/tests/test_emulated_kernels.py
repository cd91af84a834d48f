"""The shared kernels in CUDA C++, emulated on the processor, beside the float64 reference.

All their accesses are checked, in three orders of their items. Nothing here ran on a GPU.
"""

from collections.abc import Iterator

import pytest

from tensorplug.backend import Backend
from tensorplug.testing.cases import Case, node_of
from tensorplug.testing.check import check
from tensorplug.testing.tiers import select
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.emulator import Order, missing
from tensorplug_simt.emulator.device import EmulatedDevice
from tensorplug_simt.program import Program

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@pytest.fixture
def stream(device: EmulatedDevice, order: Order) -> Iterator[Backend]:
    device.emulator.order = order
    with device.open() as stream:
        yield stream


def _supported(device: EmulatedDevice, tier: str) -> list[Case]:
    return [case for case in select(tier) if device.supports(node_of(case))]


def _kernels(device: EmulatedDevice, case: Case) -> frozenset[str]:
    program = device.lower(node_of(case))
    launches = program.launches if isinstance(program, Program) else ()
    return frozenset(launch.kernel.name for launch in launches)


def _problems(device: EmulatedDevice, stream: Backend, cases: list[Case]) -> list[str]:
    device.prepare(map(node_of, cases))
    outcomes = [check(case, stream) for case in cases]
    return [f"{o.case}: {o.detail}" for o in outcomes if o.verdict != "passed"]


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
def test_each_kernel_computes_its_first_case(device, stream, order):
    firsts = {_kernels(device, case): case for case in reversed(_supported(device, "smoke"))}

    problems = _problems(device, stream, list(firsts.values()))

    assert len(firsts) > 60
    assert problems == []


@pytest.mark.parametrize(
    ("tier", "count"),
    [
        pytest.param("smoke", 440, marks=pytest.mark.long),
        pytest.param("full", 8000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
def test_kernels_compute_the_cases_of_the_kit(device, stream, order, tier, count):
    cases = _supported(device, tier)

    problems = _problems(device, stream, cases)

    assert len(cases) > count
    assert problems == []
