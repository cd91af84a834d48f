"""Our device and our reference against direct formulas, where ggml has no kernel or no test."""

import pytest
from oracle.formulas import FORMULAS
from oracle.judge import chosen, examine_formula

from tensorplug_testing.cases import CASES


@pytest.mark.parametrize(
    "case", chosen(case for case in CASES if case.op in FORMULAS), ids=lambda case: case.id
)
def test_case_gives_what_its_formula_gives(case, backend, note):
    finding = note(examine_formula(case, backend))

    assert finding.detail == ""
