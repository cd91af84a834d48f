"""Columns of several products are rounded once, unless they were overwritten; emulated."""

from itertools import chain

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Plan
from tensorplug_cpu.reference import decode, encode
from tensorplug_emulator import missing
from tensorplug_simt import plan

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

LENGTH = 128
"""Of columns, and of results: these may be the columns of other products."""
BYTES = 4 * LENGTH
APART = 4096
"""Bytes that are enough for a result and its scratch memory."""
X, Z, FIRST, SECOND, WEIGHTS = 0, 512, APART, 2 * APART, (4 * APART, 10 * APART)
CODES = FIRST + BYTES
"""Where the first product has its codes."""


@pytest.fixture
def stream(device):
    """One stream of the device, with two others for branches."""
    with device.open(streams=3) as stream:
        yield stream


@pytest.fixture
def memory(device):
    with device.buffer_type.alloc(16 * APART) as memory:
        yield memory


def matrices(*kinds):
    """Bytes of matrices, with the numbers that they stand for."""
    random = np.random.default_rng(1)
    stored = [encode(kind, random.standard_normal((LENGTH, LENGTH)) / 11) for kind in kinds]
    numbers = (decode(kind, each) for kind, each in zip(kinds, stored, strict=True))
    return stored, [each.reshape(LENGTH, LENGTH) for each in numbers]


def column(seed):
    return np.random.default_rng(seed).standard_normal(LENGTH).astype(np.float32)


def rounded(run):
    """How often a plan rounds columns: each of them is a group's work."""
    return sum(launch.groups[0] for launch in run._ready if launch.name == "rounded")


class Products:
    """Two products of x; where it is `written`, z is copied to it in between."""

    def __init__(self, *kinds, written=False):
        self.kinds, self.written = kinds or (tp.Q8_0, tp.Q8_0), written
        self.stored, self.values = matrices(*self.kinds)
        self.weights = [tp.input(f"w{i}", (LENGTH,) * 2, t) for i, t in enumerate(self.kinds)]
        self.x, self.z = (tp.input(name, (1, LENGTH), tp.F32) for name in "xz")
        first = tp.mul_mat(self.weights[0], self.x)
        self.copies = [tp.cpy(self.z, self.x)] if written else []
        columns = self.copies[0] if written else self.x
        self.results = [first, tp.mul_mat(self.weights[1], columns)]

    def bound(self, memory, second=SECOND):
        """The graph in memory; the second result lies `second` bytes from its start."""
        at = dict(zip([self.x, self.z, *self.results], (X, Z, FIRST, second), strict=True))
        at |= dict.fromkeys(self.copies, X) | dict(zip(self.weights, WEIGHTS, strict=True))
        for start, stored in zip(WEIGHTS, self.stored, strict=True):
            memory.write(start, stored)
        places = {tensor: tp.Place(memory, start) for tensor, start in at.items()}
        return tp.Part.of(tp.Graph([*self.results, *self.copies]), tp.Bindings(places))

    def run(self, run, memory, second=SECOND):
        """Run a plan on new numbers: is each result right?"""
        x, z = column(2), column(3)
        memory.fill(0xFF, 0, WEIGHTS[0])
        memory.write(X, x)
        memory.write(Z, z)
        run.run()
        run.backend.synchronize()
        columns = x, z if self.written else x
        return [
            bool(np.abs(memory.read(start, BYTES).view(np.float32) - w @ column).max() < 0.05)
            for start, w, column in zip((FIRST, second), self.values, columns, strict=True)
        ]


def test_columns_of_two_products_are_rounded_once_and_the_products_are_one_launch(stream, memory):
    products = Products()

    with stream.plan(products.bound(memory)) as run:
        right = [products.run(run, memory) for _ in range(3)]

        assert (rounded(run), run.launches, run.recorded) == (1, 2, True)
    assert right == [[True, True]] * 3


def test_columns_that_were_written_in_between_are_rounded_again(stream, memory):
    products = Products(written=True)

    with stream.plan(products.bound(memory)) as run:
        right = [products.run(run, memory) for _ in range(3)]

        assert rounded(run) == 2
    assert right == [[True, True]] * 3


def test_each_binding_decides_whether_codes_outlast_the_second_product(stream, memory):
    products = Products()
    found = []

    with stream.plan(products.bound(memory)) as run:
        for second in (SECOND, CODES, SECOND + APART // 2, CODES):
            run.rebind(products.bound(memory, second))
            right = [products.run(run, memory, second) for _ in range(3)]
            found.append((rounded(run), run.recorded, right))

    assert found == [(1, True, [[True, True]] * 3), (2, True, [[True, True]] * 3)] * 2


def test_products_on_two_streams_both_wait_for_the_rounding_that_they_share(stream, memory):
    products = Products(tp.Q8_0, tp.Q4_0)

    with stream.plan(products.bound(memory)) as run:
        right = [products.run(run, memory) for _ in range(6)]

        assert (rounded(run), run.branches, run.longest) == (1, 2, 2)
    assert right == [[True, True]] * 6


def test_traced_plan_times_the_launches_that_are_left(stream, memory):
    with stream.plan(Products().bound(memory)) as run:
        stream.profile = True
        run.run()
        stream.synchronize()

        names = [span.name for span in stream.take_spans()]

    assert names == ["rounded", "matvec"]


# --- random graphs -----------------------------------------------------------------------------


def tangle(weights, seed):
    """A graph of products, sums, and writes over columns that were multiplied, and its input."""
    random = np.random.default_rng(seed)
    x = tp.input("x", (1, LENGTH), tp.F32)
    tensors, effects = [tp.scale(x, n + 1.0) for n in range(3)], []
    for _ in range(12):
        a, b = random.choice(len(tensors), 2, replace=False)
        kind = random.choice(["products", "sum", "write"], p=[0.6, 0.2, 0.2])
        if kind == "products":
            tensors += [tp.mul_mat(w, tensors[a]) for w in weights]
        elif kind == "sum":
            tensors.append(tp.scale(tp.add(tensors[a], tensors[b]), 0.5))
        else:
            tensors[b] = tp.cpy(tensors[a], tensors[b])
            effects.append(tensors[b])
        tensors = tensors[-6:]
    return tp.Graph(tensors, effects=effects), x


def results(stream, weights, seed):
    """What a graph gives in three runs, and how often it rounds columns."""
    graph, x = tangle(weights, seed)
    with tp.Scheduler([stream], sanitize=True) as scheduler, scheduler.schedule(graph) as run:
        found = []
        for number in range(3):
            values = run.run({x: column(number)[None]})
            found += [np.array(values[output]) for output in graph.outputs]
        plans = [child for child in stream.children if isinstance(child, Plan)]
        return found, sum(map(rounded, plans))


def compare(device, monkeypatch, seeds):
    """How often columns of random graphs are rounded, and how often without reuse; both give the
    same."""
    real, counts = plan.reusing, np.zeros(2, int)
    with device.open(streams=3) as stream:
        kinds = tp.Q8_0, tp.Q4_0
        pairs = zip(kinds, matrices(*kinds)[0], strict=True)
        weights = [stream.place(kind.name, stored, dtype=kind) for kind, stored in pairs]
        for seed in range(seeds):
            found, once = results(stream, weights, seed)
            monkeypatch.setattr(plan, "reusing", lambda programs: [*chain(*programs)])
            wanted, always = results(stream, weights, seed)
            monkeypatch.setattr(plan, "reusing", real)
            counts += once, always
            np.testing.assert_array_equal(found, wanted, err_msg=f"seed {seed}")
    return counts


def test_random_graphs_give_what_they_give_when_all_columns_are_rounded(device, monkeypatch):
    once, always = compare(device, monkeypatch, 4)

    assert always / 2 < once < always


@pytest.mark.long
def test_many_random_graphs_give_what_they_give_when_all_columns_are_rounded(device, monkeypatch):
    once, always = compare(device, monkeypatch, 40)

    assert always / 2 < once < always
