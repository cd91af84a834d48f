"""The table of cases itself: complete, unambiguous, reproducible."""

import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_testing.cases import CASES, REFUSED, Arg, Case, build
from tensorplug_testing.cases.compare import difference


def test_case_ids_are_unique():
    ids = [case.id for case in (*CASES, *REFUSED)]

    assert len(ids) == len(set(ids))


def test_cases_cover_every_op_that_computes():
    computing = {name for name, op in tp.OPS.items() if not op.is_view}

    assert {case.op for case in CASES} == computing


def test_cases_cover_every_type_that_a_source_admits():
    admitted = {
        (op.name, source.name, dtype)
        for op in tp.OPS.values()
        if not op.is_view
        for source in op.sources
        for dtype in source.types
    }
    covered = {
        (case.op, source.name, arg.dtype)
        for case in (*CASES, *REFUSED)
        for source, arg in zip(tp.OPS[case.op].sources, case.args, strict=False)
        if arg is not None
    }

    assert sorted(map(str, admitted - covered)) == []


def test_a_case_gives_the_same_values_every_time():
    first, second = build(CASES[0]), build(CASES[0])

    assert all(
        np.array_equal(a, b)
        for a, b in zip(first.stored.values(), second.stored.values(), strict=True)
    )


def _compared(case, got, wanted):
    return difference(case, build(case), np.array(got), np.array(wanted))


NEAR = Case(op="neg", args=(Arg((3,)),), limit=1e-6)
NEAR_EACH = Case(op="neg", args=(Arg((3,)),), limit=1e-6, each=True)
EXACT = Case(op="neg", args=(Arg((3,)),), compare="exact")
ENCODED = Case(op="dup", args=(Arg((32,)),), params={"to": "q8_0"}, compare="encoded")
NOT_FINITE = Case(op="neg", args=(Arg((3,)),), limit=1e-6, compare="not_finite")


@pytest.mark.parametrize("got", [[1.0, math.inf, 3.0], [1.0, math.nan, 3.0], [1.0, -math.inf, 3.0]])
def test_what_need_not_be_finite_may_be_infinite_or_nan(got):
    assert _compared(NOT_FINITE, got, [1.0, math.inf, 3.0]) == ""


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        ([1.0, 2.0, 3.0], "infinity or NaN in other places; 1 of 3 differ, first at (1,)"),
        (
            [math.nan, math.inf, 3.0],
            "infinity or NaN in other places; 1 of 3 differ, first at (0,)",
        ),
        ([1.0, math.inf, 4.0], "error 0.1 > 1e-06; 1 of 3 differ, first at (2,)"),
    ],
)
def test_what_is_finite_elsewhere_than_the_reference_is_wrong(got, problem):
    assert _compared(NOT_FINITE, got, [1.0, math.inf, 3.0]).startswith(problem)


@pytest.mark.parametrize(
    ("case", "got", "wanted"),
    [
        (NEAR, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        (NEAR, [1.0, 2.0, 3.003], [1.0, 2.0, 3.0]),
        (NEAR, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        (NEAR, [1.0, math.nan, -math.inf], [1.0, math.nan, -math.inf]),
        (NEAR, [1.0, 2.0, math.inf], [1.0, 2.0, 1e39]),
        (NEAR_EACH, [1e-7, 2.0, 1e4], [2e-7, 2.0, 1e4]),
        (EXACT, [1.0, math.nan, math.inf], [1.0, math.nan, math.inf]),
        (ENCODED, [1.0, 0.5, 0.0], [1.0, 0.5, 0.007]),
    ],
)
def test_results_that_are_near_enough_pass(case, got, wanted):
    assert _compared(case, got, wanted) == ""


@pytest.mark.parametrize(
    ("case", "got", "wanted", "problem"),
    [
        (NEAR, [1.0, 2.0], [1.0, 2.0, 3.0], "shape (2,), wanted (3,)"),
        (NEAR, [1.0, 2.0, 3.01], [1.0, 2.0, 3.0], "error 7.14e-06 > 1e-06"),
        (NEAR, [0.0, 0.0, 1e-30], [0.0, 0.0, 0.0], "error "),
        (NEAR, [1.0, math.nan, 3.0], [1.0, 2.0, 3.0], "infinity or NaN"),
        (NEAR, [1.0, math.inf, 3.0], [1.0, -math.inf, 3.0], "infinity or NaN"),
        (NEAR, [1.0, 2.0, 3e38], [1.0, 2.0, 1e39], "infinity or NaN"),
        (NEAR_EACH, [1e-3, 2.0, 1e4], [2e-3, 2.0, 1e4], "too far; 1 of 3 differ, first at (0,)"),
        (EXACT, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0000002], "not equal; 1 of 3 differ, first at (2,)"),
        (ENCODED, [1.0, 0.5, 0.0], [1.0, 0.5, 0.01], "distance 0.01 > 0.00787"),
    ],
)
def test_results_that_are_not_near_enough_are_described(case, got, wanted, problem):
    assert _compared(case, got, wanted).startswith(problem)


@pytest.mark.parametrize(
    ("op", "params", "compare", "ids", "problem"),
    [
        ("argsort", {}, "order", [[1, 0, 2, 3]], ""),
        ("argsort", {}, "order", [[1, 2, 0, 3]], ""),
        ("argsort", {}, "order", [[1, 2, 3, 0]], "other values"),
        ("argsort", {}, "order", [[1, 1, 0, 3]], "the indices of some row are not a permutation"),
        ("top_k", {"k": 2}, "set", [[3, 0]], ""),
        ("top_k", {"k": 2}, "set", [[2, 3]], ""),
        ("top_k", {"k": 2}, "set", [[1, 3]], "other values"),
        ("top_k", {"k": 2}, "set", [[3, 3]], "some row has an index twice, or a negative index"),
        ("top_k", {"k": 2}, "set", [[3, 9]], "index 9 in rows of 4"),
    ],
)
def test_orders_may_differ_where_values_are_equal(op, params, compare, ids, problem):
    case = Case(op=op, args=(Arg((4, 1)),), params=params, compare=compare)
    built = build(case)
    built.stored[built.graph.leafs[0]][...] = [[5, 1, 5, 9]]
    wanted = {"argsort": [[1, 0, 2, 3]], "top_k": [[3, 0]]}[op]

    found = difference(case, built, np.array(ids), np.array(wanted))

    assert found.split(";")[0] == problem
