"""The table of cases itself: complete, unambiguous, reproducible."""

import numpy as np

import tensorplug as tp

from .cases import CASES, REFUSED, build


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
