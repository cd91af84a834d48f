"""Neighbouring launches that become one, on real devices."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.facts import WIDE
from tensorplug_opencl.plan import OpenCLPlan


@pytest.fixture(params=["0", "1"], ids=["groups", "items"])
def styled(request, driver, monkeypatch):
    """A stream of a device with the kernels of GPUs, and with those of processors."""
    monkeypatch.setenv(WIDE, request.param)
    with OpenCLDevice("opencl:0", driver) as device, device.open() as stream:
        yield stream


@pytest.fixture
def launches(monkeypatch):
    """How many launches each plan has."""
    counts = []
    real = OpenCLPlan._run

    def counted(plan):
        counts.append(len(plan._ready))
        real(plan)

    monkeypatch.setattr(OpenCLPlan, "_run", counted)
    return counts


def test_products_with_one_input_are_one_launch(styled, launches):
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((rows, 96)).astype(np.float32) for rows in (70, 3, 41)]
    weights = [tp.input(f"w{i}", table.shape, tp.F32) for i, table in enumerate(tables)]
    x = tp.input("x", (2, 96), tp.F32)
    ys = [tp.mul_mat(w, x) for w in weights]
    data = rng.standard_normal((2, 96)).astype(np.float32)

    with tp.Scheduler([styled]).schedule(ys) as run:
        results = run.run({x: data, **dict(zip(weights, tables, strict=True))})
        got = [results[y] for y in ys]

    assert launches == [1]
    for table, found in zip(tables, got, strict=True):
        np.testing.assert_allclose(found, data @ table.T, rtol=1e-4, atol=1e-4)


def test_each_of_a_chain_of_launches_stays_its_own(styled, launches):
    x = tp.input("x", (4, 32), tp.F32)
    y = tp.scale(tp.scale(tp.scale(x, 2.0), 3.0), 5.0)
    data = np.ones((4, 32), np.float32)

    with tp.Scheduler([styled]).schedule(y) as run:
        got = run.run({x: data})[y]

    assert launches == [3]
    assert (got == 30).all()


def test_rows_of_keys_and_values_are_stored_by_one_launch(styled, launches):
    rng = np.random.default_rng(1)
    rows = np.array([5, 0, 3], np.int32)
    new = rng.standard_normal((2, 3, 64)).astype(np.float32)
    ids = tp.input("ids", rows.shape, tp.I32)
    sources = [tp.input(f"s{i}", (3, 64), tp.F32) for i in range(2)]
    tables = [tp.input(f"t{i}", (8, 64), tp.F32) for i in range(2)]
    writes = [tp.set_rows(t, s, ids) for t, s in zip(tables, sources, strict=True)]
    empty = np.zeros((8, 64), np.float32)

    with tp.Scheduler([styled]).schedule(writes) as run:
        values = {**dict(zip(sources, new, strict=True)), **dict.fromkeys(tables, empty)}
        results = run.run({ids: rows, **values})
        got = [results[w] for w in writes]

    assert launches == [1]
    for found, given in zip(got, new, strict=True):
        assert np.array_equal(found[rows], given)
        assert not np.delete(found, rows, axis=0).any()
