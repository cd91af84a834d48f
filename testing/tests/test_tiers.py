"""Which cases each tier takes, and that the tiers are as large as they say."""

import pytest

import tensorplug as tp
from tensorplug_testing.cases import CASES, MODELS
from tensorplug_testing.tiers import ROTATION, all_cases, select

COMPUTING = {name for name, op in tp.OPS.items() if not op.is_view and "." not in name}


@pytest.mark.parametrize("tier", ["smoke", "ci", "full"])
def test_every_tier_has_a_case_of_every_op(tier):
    assert {case.op for case in select(tier)} >= COMPUTING


def test_full_has_more_than_ten_thousand_cases_each_with_a_name_of_its_own():
    ids = [case.id for case in select("full")]

    assert len(ids) > 10_000
    assert len(set(ids)) == len(ids)


def test_ci_has_all_types_and_layouts_of_every_op():
    everything, taken = (
        {(c.op, c.types, c.layouts) for c in cases} for cases in (CASES, select("ci", cases=CASES))
    )

    assert taken == everything


def test_ci_takes_other_cases_for_another_seed_and_all_of_them_in_turn():
    turns = [{c.id for c in select("ci", seed=n, cases=CASES)} for n in range(ROTATION)]

    assert turns[0] != turns[1]
    assert set().union(*turns) == {case.id for case in CASES}


def test_smoke_is_a_small_part():
    assert len(select("smoke")) < len(CASES) / 10


def test_ops_of_real_models_are_among_the_cases():
    ops = {case.op for case in MODELS}

    assert {case.id for case in MODELS} <= {case.id for case in all_cases()}
    assert ops >= {
        "mul_mat",
        "rope",
        "rms_norm",
        "flash_attn_ext",
        "set_rows",
        "get_rows",
        "swiglu",
    }
