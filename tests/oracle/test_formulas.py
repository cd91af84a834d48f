"""Our device and our reference against direct formulas, where ggml has no kernel or no test."""

import math

import pytest
from oracle.formulas import FORMULAS, STEPS
from oracle.judge import chosen, examine_formula

from tensorplug_testing.cases import CASES, Case

MOST_STEPS = 4096
"""A derivative by complex steps computes the function once for each element of its sources."""


def is_feasible(case: Case) -> bool:
    """True if an op has a formula whose time does not explode with the size of the case."""
    if case.op not in FORMULAS:
        return False
    steps = sum(math.prod(arg.ne) for arg in case.args)
    return FORMULAS[case.op][0] != STEPS or steps <= MOST_STEPS


@pytest.mark.parametrize("case", chosen(filter(is_feasible, CASES)), ids=lambda case: case.id)
def test_case_gives_what_its_formula_gives(case, backend, note):
    finding = note(examine_formula(case, backend))

    assert finding.detail == ""
