"""`OpTests`: every op on a device gives the result of the reference."""

from typing import Any

import pytest

from tensorplug.device import Backend, Device
from tensorplug_testing.cases import Case, node_of
from tensorplug_testing.cases.bounds import rounding_of
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.check import problem, refusal
from tensorplug_testing.tiers import select


class OpTests:
    """Computes each case that the device accepts and compares the result."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests with the cases of the tier given on the command line."""
        if "case" not in metafunc.fixturenames:
            return
        option = metafunc.config.getoption
        # Plans use the same code for all cases of an op, so one case of each type is enough.
        whole = metafunc.function.__name__ == "test_case"
        tier = option("tensorplug_tier", "ci") if whole else "smoke"
        cases = select(tier, seed=option("tensorplug_kit_seed", 0))
        metafunc.parametrize("case", cases, ids=[case.id for case in cases])

    def test_case(self, case: Case, device: Device, backend: Backend, kit_seed: int) -> None:
        _skip_refused(case, device)

        assert problem(case, backend, base=kit_seed) == ""

    def test_plan_runs_again_and_where_it_is_bound_anew(
        self, case: Case, device: Device, backend: Backend, kit_seed: int
    ) -> None:
        _skip_refused(case, device)
        first, second = (lay(case, backend.buffer_type, base=kit_seed) for _ in range(2))
        second = second.redrawn(kit_seed)

        with backend.plan(first.bound) as plan:
            for laid in (first, second):
                plan.rebind(laid.bound)
                laid.write_leafs()
                plan.run()
                backend.synchronize()

        for laid in (first, second):
            wrong = laid.problem(rounding_of(backend, laid.built.node))
            assert not wrong, wrong

    def test_leaf_and_view_are_never_refused(self, device: Device) -> None:
        case = select("smoke", ops=["add"])[0]
        sources = node_of(case).sources

        assert [device.refuses(source) for source in sources] == [None] * len(sources)


def _skip_refused(case: Case, device: Device) -> None:
    reason = refusal(case, device)
    if reason:
        pytest.skip(reason)
