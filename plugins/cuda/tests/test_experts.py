"""Products of experts: rows sorted by expert on the device, and one by one; emulated."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Plan
from tensorplug_emulator import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

LENGTH, ROWS, SLOTS = 40, 70, 3
CHOICES = {
    "all rows have one expert": lambda random, shape: np.full(shape, 2),
    "experts are chosen at random": lambda random, shape: random.integers(0, 4, shape),
    "an expert has no row": lambda random, shape: random.choice([0, 1, 3], shape),
    "some ids name no expert": lambda random, shape: random.integers(-2, 6, shape),
    "no id names an expert": lambda random, shape: np.full(shape, 4),
}


def expected(w, x, ids):
    """What `mul_mat_id` says, in float64; 0 where an id names no expert."""
    y = np.zeros((*ids.shape, w.shape[1]))
    for t, i in np.ndindex(*ids.shape):
        if 0 <= ids[t, i] < len(w):
            y[t, i] = w[ids[t, i]].astype(float) @ x[t, i % x.shape[1]]
    return y


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("tokens", [2, 9, 60], ids=["one by one", "narrow tiles", "wide tiles"])
def test_each_row_meets_the_matrix_of_its_expert(stream, choice, tokens):
    random = np.random.default_rng(tokens)
    w = random.standard_normal((4, ROWS, LENGTH), np.float32)
    x = random.standard_normal((tokens, SLOTS, LENGTH), np.float32)
    ids = CHOICES[choice](random, (tokens, SLOTS)).astype(np.int32)
    inputs = tp.input("x", x.shape, tp.F32), tp.input("ids", ids.shape, tp.I32)
    computed = tp.dup(inputs[1])  # ids that are given are checked before the run
    y = tp.mul_mat_id(stream.place("w", w), inputs[0], computed)

    with tp.Scheduler([stream]).schedule(y) as run:
        found = run.run(dict(zip(inputs, (x, ids), strict=True)))[y]

    assert np.allclose(found, expected(w, x, ids), atol=1e-4)


def test_prompts_of_experts_wait_for_nobody(stream, machine):
    x = tp.input("x", (60, 1, LENGTH), tp.F32)
    ids = tp.input("ids", (60, SLOTS), tp.I32)
    w = stream.place("w", np.ones((4, ROWS, LENGTH), np.float32))
    values = {x: np.ones((60, 1, LENGTH), np.float32), ids: np.zeros((60, SLOTS), np.int32)}
    with tp.Scheduler([stream]).schedule(tp.mul_mat_id(w, x, ids)) as run:
        for _ in range(3):
            run.run(values)

    assert (machine.captures, machine.graph_launches) == (1, 2)


def test_products_with_the_same_choices_sort_the_rows_once(stream):
    random = np.random.default_rng(1)
    weights = [random.standard_normal((4, LENGTH, LENGTH), np.float32) / 6 for _ in range(2)]
    x, chosen = random.standard_normal((60, SLOTS, LENGTH), np.float32), (60, SLOTS)
    ids = random.integers(0, 4, chosen).astype(np.int32)
    inputs = tp.input("x", x.shape, tp.F32), tp.input("ids", chosen, tp.I32)
    y = inputs[0]
    for i, w in enumerate(weights):
        y = tp.mul_mat_id(stream.place(f"w{i}", w), y, inputs[1])

    with tp.Scheduler([stream]).schedule(y) as run:
        found = run.run(dict(zip(inputs, (x, ids), strict=True)))[y]
        (plan,) = (child for child in stream.children if isinstance(child, Plan))
        names = [launch.name for launch in plan._ready]

    assert names == ["sorted_by_expert", "expert_tiles", "expert_tiles"]
    wanted = expected(weights[1], expected(weights[0], x, ids), ids)
    assert np.allclose(found, wanted, atol=1e-3)
