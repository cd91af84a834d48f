"""Ids that name no row: nothing is read or written for them."""

import numpy as np
import pytest

import tensorplug as tp

OUTSIDE = [-1, 6, 2**31 - 1, -(2**31)]
FAR = [*OUTSIDE, 2**32, 2**32 + 1, -(2**63)]


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q4_0, tp.Q6_K], ids=lambda t: t.name)
@pytest.mark.parametrize("wrong", OUTSIDE)
def test_row_that_is_not_there_is_nan(stream, dtype, wrong):
    stored = np.zeros((6, dtype.row_size(256) // dtype.storage.itemsize), dtype.storage)
    table = tp.input("table", (6, 256), dtype)
    ids = tp.input("ids", (3,), tp.I32)
    y = tp.get_rows(table, ids)

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({table: stored, ids: np.array([2, wrong, 5], np.int32)})[y]

    assert np.isnan(got).all(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [tp.F32, tp.BF16, tp.Q8_0], ids=lambda t: t.name)
@pytest.mark.parametrize("wrong", FAR)
def test_row_without_a_place_is_not_written(stream, dtype, wrong):
    table = tp.input("table", (6, 256), dtype)
    rows = tp.input("rows", (2, 256), tp.F32)
    ids = tp.input("ids", (2,), tp.I64)
    y = tp.dup(tp.set_rows(table, rows, ids), to=tp.F32)
    stored = np.zeros((6, dtype.row_size(256) // dtype.storage.itemsize), dtype.storage)
    new = {rows: np.ones((2, 256), np.float32), ids: np.array([4, wrong])}

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({table: stored, **new})[y]

    assert got.any(axis=1).tolist() == [False, False, False, False, True, False]


@pytest.mark.parametrize("wrong", OUTSIDE)
def test_gradient_without_a_row_is_left_out(stream, wrong):
    grad = tp.input("grad", (2, 8), tp.F32)
    ids = tp.input("ids", (2,), tp.I32)
    y = tp.get_rows_back(grad, ids, (6, 8))
    given = {grad: np.ones((2, 8), np.float32), ids: np.array([4, wrong], np.int32)}

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run(given)[y]

    assert got.sum(axis=1).tolist() == [0, 0, 0, 0, 8, 0]
