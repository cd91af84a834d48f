"""Weights of experts that a scheduler copies: those in use."""

from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.graph.tensor import Tensor

from .rig import Rig


def expert_product(node: Tensor, out: Any, w: Any, x: Any, ids: Any) -> None:
    for t in range(x.shape[1]):
        for i in range(ids.shape[3]):
            out[0, t, i] = w[0, ids[0, 0, t, i]] @ x[0, t, i % x.shape[2]]


def test_experts_that_a_later_split_uses_too_are_copied_whole() -> None:
    rig = Rig(kernels={"mul_mat_id": expert_product}, offloads={"mul_mat_id"})
    weights = np.random.default_rng(1).standard_normal((8, 4, 4)).astype(np.float32)
    w = rig.slow.place("experts", weights, usage=tp.WEIGHTS)
    x = tp.input("x", (2, 1, 4), tp.F32)
    first, then = (tp.input(name, (2, 2), tp.I32) for name in ("first", "then"))
    between = tp.relu(tp.mul_mat_id(w, x, first))
    y = tp.mul_mat_id(w, between, then)
    schedule = rig.scheduler.schedule([between, y], pins={between: rig.slow})
    used = np.array([[5, 6], [7, 5]], np.int32)

    results = schedule.run(
        {x: np.ones((2, 1, 4)), first: np.array([[0, 1], [1, 0]], np.int32), then: used}
    )

    expected = np.einsum("tiab,tib->tia", weights[used], results[between])
    np.testing.assert_allclose(results[y], expected, rtol=1e-5)
    rig.close()


def test_only_the_experts_in_use_are_copied() -> None:
    kernels = {"mul_mat_id": expert_product}
    rig = Rig(kernels=kernels, offloads={"mul_mat_id"})
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((8, 4, 4)).astype(np.float32)
    w = rig.slow.place("experts", weights, usage=tp.WEIGHTS)
    x, ids = tp.input("x", (2, 1, 4), tp.F32), tp.input("ids", (2, 2), tp.I32)
    y = tp.mul_mat_id(w, x, ids)
    rig.cpu._kernels["mul_mat_id"] = expert_product
    schedule = rig.scheduler.schedule(y)
    values = rng.standard_normal((2, 1, 4)).astype(np.float32)
    used = np.array([[1, 2], [6, 1]])

    result = schedule.run({x: values, ids: used})[y]

    assert schedule.device_of(y) == "gpu:0"
    expected = np.stack([[weights[e] @ values[t, 0] for e in used[t]] for t in range(2)])
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    moved = [e.detail for e in rig.gpu.log if e.what == "write" and e.detail in (64, 128)]
    assert moved == [128, 64]
    rig.close()


def test_some_rows_of_the_experts_in_use_are_copied_up_to_the_last_row() -> None:
    rig = Rig(kernels={"mul_mat_id": expert_product}, offloads={"mul_mat_id"})
    weights = np.random.default_rng(1).standard_normal((4, 64, 8)).astype(np.float32)
    w = rig.slow.place("experts", weights, usage=tp.WEIGHTS)
    x, ids = tp.input("x", (1, 1, 8), tp.F32), tp.input("ids", (1, 2), tp.I32)
    y = tp.mul_mat_id(w[:, 62:], x, ids)
    rig.cpu._kernels["mul_mat_id"] = expert_product
    schedule = rig.scheduler.schedule(y)

    result = schedule.run({x: np.ones((1, 1, 8)), ids: np.array([[3, 0]])})[y]

    assert schedule.device_of(y) == "gpu:0"
    np.testing.assert_allclose(result[0], weights[[3, 0], 62:].sum(-1), rtol=1e-4, atol=1e-5)
    rig.close()
