"""Our device and our reference against the real ggml: the same graphs, the same inputs."""

import pytest
from oracle.builders import BUILDERS
from oracle.formulas import FORMULAS
from oracle.judge import chosen, examine

import tensorplug as tp
from tensorplug_testing.cases import CASES


@pytest.mark.parametrize(
    "case", chosen(case for case in CASES if case.op in BUILDERS), ids=lambda case: case.id
)
def test_case_gives_what_ggml_gives(case, oracle, backend, note):
    finding = note(examine(case, oracle, backend))

    assert finding.detail == ""


def test_every_op_has_a_builder_of_ggml_or_a_formula():
    assert set(tp.OPS) - {*BUILDERS, *FORMULAS} == set()
