"""Products of matrices: what the conformance kit cannot ask for."""

import numpy as np
import pytest

import tensorplug as tp

EXPERTS, ROWS, LENGTH = 3, 5, 64


@pytest.mark.parametrize("tokens", [1, 9], ids=["one by one", "sorted"])
@pytest.mark.parametrize("stray", [-1, EXPERTS, 2**31 - 1, -(2**31)])
def test_ids_that_name_no_expert_give_rows_of_zeros(stream, tokens, stray):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((EXPERTS, ROWS, LENGTH)).astype(np.float32)
    data = rng.standard_normal((tokens, 1, LENGTH)).astype(np.float32)
    chosen = np.tile(np.array([1, stray], np.int32), (tokens, 1))
    w = stream.place("w", weights)
    x = tp.input("x", data.shape, tp.F32)
    ids = tp.input("ids", chosen.shape, tp.I32)
    y = tp.mul_mat_id(w, x, tp.dup(ids))  # computed: ids that are given are checked before the run

    with tp.Scheduler([stream]).schedule(y) as run:
        got = run.run({x: data, ids: chosen})[y]

    np.testing.assert_allclose(got[:, 0], data[:, 0] @ weights[1].T, rtol=1e-4, atol=1e-4)
    assert not got[:, 1].any()
