"""Random graphs on tensors that are cut at random: several devices give what one gives."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug import meta, transfer
from tensorplug.graph.tensor import Tensor
from tensorplug.meta import Partition, cut
from tensorplug.ops.copy import in_place
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.null import NullDevice, null_devices

SIDE = 8
LEAFS = ("a", "b", "state", "other")
CLOSE = 1e-3
"""Part of the largest value that results may differ by: norms of small rows multiply noise."""


@dataclass(frozen=True)
class Given:
    """What the steps of a program may use besides values."""

    state: Tensor
    ids: Tensor
    positions: Tensor


def heads(x: Tensor) -> Tensor:
    return tp.permute(tp.reshape(x, (SIDE, 2, 4)), (1, 0, 2))


def flat(x: Tensor) -> Tensor:
    return tp.reshape(tp.cont(x), (SIDE, SIDE))


Build = Callable[[Tensor, Tensor, Given], Tensor]
STEPS: dict[str, Build] = {
    "add": lambda a, b, _g: a + b,
    "mul": lambda a, b, _g: tp.soft_max(a) * b,
    "sub": lambda a, b, _g: a - b,
    "scale": lambda a, _b, _g: tp.scale(a, 0.5),
    "relu": lambda a, _b, _g: tp.relu(a),
    "product": lambda a, b, _g: tp.scale(tp.mul_mat(a, b), 1 / SIDE),
    "norm": lambda a, _b, _g: tp.rms_norm(a),
    "turned": lambda a, _b, _g: tp.cont(a.T),
    "heads": lambda a, _b, _g: flat(tp.cont(heads(a))),
    "rows_of_two": lambda a, b, _g: tp.concat(a[:4], b[4:], axis=0),
    "columns_of_two": lambda a, b, _g: tp.concat(a[:, :4], b[:, 4:], axis=1),
    "rows": lambda a, _b, g: tp.get_rows(a, g.ids),
    "sums": lambda a, b, _g: a + tp.sum_rows(b),
    "gated": lambda a, b, _g: tp.swiglu(a, b),
    "turn": lambda a, _b, g: flat(tp.rope(tp.reshape(a, (SIDE, 2, 4)), g.positions, dims=4)),
    "attend": lambda a, b, _g: flat(tp.flash_attn_ext(heads(a), heads(b), heads(b), scale=0.5)),
    "over": lambda a, b, _g: in_place(tp.scale(a, 1.0) + b),
    "copy_in": lambda a, _b, g: tp.scale(tp.cpy(a, g.state), 1.0),
    "copy_rows_in": lambda a, b, g: b + tp.concat(tp.cpy(a[2:5], g.state[1:4]), a[3:], axis=0),
    "scatter": lambda a, _b, g: tp.scale(tp.set_rows(g.state, a, g.ids), 1.0),
    "look_at_state": lambda a, _b, g: a + tp.rms_norm(g.state),
    "written_later": lambda a, b, g: _seen(g.state[2:6], tp.cpy(b, g.state), a),
}


def _seen(view: Tensor, write: Tensor, x: Tensor) -> Tensor:
    """A view that was made before the write is read after it."""
    return tp.concat(view, x[:4], axis=0) + write


@dataclass(frozen=True)
class Recipe:
    """Steps (name, two earlier values), the values wanted, and how leafs are cut."""

    steps: tuple[tuple[str, int, int], ...]
    outputs: tuple[int, ...]
    cuts: tuple[Partition | None, ...]
    devices: int
    asynchronous: bool


def cuts(devices: int) -> st.SearchStrategy[Partition | None]:
    """A leaf mirrored, or cut along an axis, in one or two segments, even or not."""

    def rows(size: int) -> st.SearchStrategy[tuple[int, ...]]:
        edges = st.lists(st.integers(0, size), min_size=devices - 1, max_size=devices - 1)
        return edges.map(lambda e: tuple(np.diff([0, *sorted(e), size]).tolist()))

    axes = st.integers(0, 1)
    one = st.builds(cut, axes, rows(SIDE))
    two = st.builds(cut, axes, rows(SIDE // 2), rows(SIDE // 2))
    even = axes.map(lambda axis: cut(axis, meta.deal(SIDE, [1] * devices)))
    return st.one_of(st.none(), even, one, two)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    devices, count = draw(st.integers(1, 4)), draw(st.integers(1, 10))
    steps = tuple(
        (
            draw(st.sampled_from(sorted(STEPS))),
            draw(st.integers(0, 1 + i)),
            draw(st.integers(0, 1 + i)),
        )
        for i in range(count)
    )
    wanted = draw(st.lists(st.integers(2, 1 + count), min_size=1, max_size=3, unique=True))
    states = tuple(draw(cuts(devices)) for _ in LEAFS)
    return Recipe(steps, tuple(wanted), states, devices, draw(st.booleans()))


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (SIDE, SIDE)).astype(np.float32)


def values(recipe: Recipe, backend: tp.Backend) -> list[np.ndarray]:
    """The outputs of two runs on `backend`, and what is in the state then."""
    leafs = {n: backend.place(n, numbers(i), usage=tp.WEIGHTS) for i, n in enumerate(LEAFS)}
    ids, positions = (tp.input(n, (SIDE,), tp.I32) for n in ("ids", "positions"))
    given_too = Given(leafs["state"], ids, positions)
    made = [leafs["a"], leafs["b"]]
    for name, i, j in recipe.steps:
        made.append(STEPS[name](made[i], made[j], given_too))
    graph = tp.Graph([made[i] for i in recipe.outputs])
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4], np.int32)
    inputs = {t: order for t in (ids, positions) if t in graph.inputs}
    found = []
    with tp.Scheduler([backend]) as scheduler, scheduler.schedule(graph) as schedule:
        for _ in range(2):
            results = schedule.run(inputs)
            found += [np.array(results[t]) for t in graph.outputs]
    return [*found, transfer.read(leafs["state"])]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(recipe=recipes())
def test_several_devices_give_what_one_gives(recipe: Recipe) -> None:
    states = dict(zip(LEAFS, recipe.cuts, strict=True))
    simple = null_devices(
        recipe.devices, kernels=ALL_KERNELS, asynchronous=recipe.asynchronous, logs=False
    )
    with (
        NullDevice(kernels=ALL_KERNELS, logs=False) as one,
        one.open() as alone,
        meta.device(simple, lambda tensor: states.get(tensor.name)) as several,
        several.open() as together,
    ):
        wanted, got = values(recipe, alone), values(recipe, together)

    for ours, theirs in zip(got, wanted, strict=True):
        limit = CLOSE * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, 0, limit)
