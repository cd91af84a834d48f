"""Rotary position embedding: pairs of elements turn by angles of their position."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled


class Angles:
    """The turns for one vector of positions, computed in f64 and kept in f32.

    For neighbours `turns` is complex [tokens, 1, pairs]; for halves it is a cosine and a signed
    sine, f32 [tokens, 1, 1, pairs] and [tokens, 1, 2, pairs]. One plan has one of these for all its
    rope nodes that share positions and parameters; the first of them refreshes it.
    """

    def __init__(self, task: Task, *, back: bool) -> None:
        self._way = -1 if back else 1
        self._positions = task["positions"].array[0, 0, 0]
        factors = task.get("factors")
        self._factors = None if factors is None else factors.array[0, 0, 0]
        self._yarn = _Yarn(task)
        self._kinds, powers = _pairs(task)
        self._frequencies = task.number("base") ** (-2.0 / task.integer("dims") * powers)
        self._tokens, self.pairs = task.node.ne[2], len(powers)
        self.turns: tuple[Array, ...]
        if task.node.params["mode"] == "normal":
            self.turns = (np.empty((self._tokens, 1, self.pairs), np.complex64),)
        else:
            self.turns = tuple(
                np.empty((self._tokens, 1, n, self.pairs), np.float32) for n in (1, 2)
            )

    def refresh(self) -> None:
        """Read the positions and compute the tables."""
        positions = self._positions.astype(np.float64).reshape(-1, self._tokens)
        angles = positions[self._kinds].T * self._frequencies
        if self._factors is not None:
            angles /= self._factors[: self.pairs]
        angles, size = self._yarn(angles)
        cosines, sines = np.cos(angles) * size, np.sin(angles) * (self._way * size)
        if len(self.turns) == 1:
            self.turns[0].real[:, 0], self.turns[0].imag[:, 0] = cosines, sines
            return
        self.turns[0][:, 0, 0] = cosines
        self.turns[1][:, 0, 0], self.turns[1][:, 0, 1] = -sines, sines


class _Yarn:
    """Scales angles: those of slow pairs are interpolated, those of fast ones kept."""

    def __init__(self, task: Task) -> None:
        dims, base = task.integer("dims"), task.number("base")
        self._scale, self._extension = task.number("scale"), task.number("ext_factor")
        self._size = task.number("attn_factor")
        self._mix = np.zeros(1)
        if not self._extension:
            return
        context = task.integer("original_context")

        def turns(n: float) -> float:
            return dims * math.log(context / (n * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(turns(task.number("beta_fast"))))
        high = min(dims - 1, math.ceil(turns(task.number("beta_slow"))))
        pairs = np.arange(_pair_count(task))
        ramp = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        self._mix = (1 - ramp) * self._extension
        self._size *= 1 + 0.1 * math.log(1 / self._scale)

    def __call__(self, angles: Array) -> tuple[Array, float]:
        if not self._extension:
            return angles * self._scale, self._size
        return angles * (self._scale * (1 - self._mix) + self._mix), self._size


def _pair_count(task: Task) -> int:
    return (
        task.node.ne[0] // 2 if task.node.params["mode"] == "vision" else task.integer("dims") // 2
    )


def _pairs(task: Task) -> tuple[Array, Array]:
    """For each pair the kind of position it follows, and the power of its frequency."""
    mode, count = task.node.params["mode"], _pair_count(task)
    if mode in ("normal", "neox"):
        return np.zeros(count, np.intp), np.arange(count, dtype=np.float64)
    sections = _sections(task)
    edges = np.cumsum(sections)[:3]
    sector = np.arange(count) % sum(sections)
    if mode == "imrope":
        kinds = np.full(count, 3)
        for kind in (0, 2, 1):
            kinds[(sector % 3 == kind) & (sector < 3 * sections[kind])] = kind
        return kinds, np.arange(count, dtype=np.float64)
    kinds = np.searchsorted(edges, sector, side="right")
    if mode == "mrope":
        return kinds, np.arange(count, dtype=np.float64)
    # vision: frequencies restart in each section
    starts = np.array([0, *edges])
    return kinds, (sector - starts[kinds]).astype(np.float64)


def _sections(task: Task) -> tuple[int, int, int, int]:
    given = task.node.params["sections"]
    assert isinstance(given, tuple)
    numbers = [n for n in given if isinstance(n, int)]
    a, b, c, d = (*numbers, 0, 0, 0, 0)[:4]
    return a, b, c, d


def _angles(task: Task, *, back: bool) -> tuple[Angles, Sequence[Step]]:
    """The tables that this node uses, and the steps that it must run for them."""
    factors = task.source("factors") if task.get("factors") is not None else None
    key = (
        "rope",
        back,
        tuple(task.node.params.items()),
        task.node.ne[0],
        task.tools.version(task.source("positions")),
        None if factors is None else task.tools.version(factors),
    )
    known = task.tools.shared.get(key)
    if known is not None:
        return known, []
    made = task.tools.shared[key] = Angles(task, back=back)
    return made, [made.refresh]


@kernel("rope")
def rope(task: Task) -> Sequence[Step]:
    """Turn the pairs of each head, copy what is left."""
    return turned(task)


def turned(task: Task, *, back: bool = False) -> Sequence[Step]:
    """Steps that turn pairs, or turn them back, and copy what is left of each head."""
    angles, steps = _angles(task, back=back)
    first = task.integer("offset")
    end = first + 2 * angles.pairs
    x = Operand(task["x"].array[..., first:end], task["x"].dtype)
    out = Operand(task.out.array[..., first:end], task.out.dtype)
    kind = _neighbours if len(angles.turns) == 1 else _halves
    result = [*steps, *kind(task, angles, x, out)]
    for rest in (slice(first), slice(end, None)):
        if task.out.array[..., rest].size:
            copied = task["x"].array[..., rest]
            result.append(partial(np.copyto, task.out.array[..., rest], copied))
    return result


def _neighbours(task: Task, angles: Angles, x: Operand, out: Operand) -> list[Step]:
    """Neighbours are the real and imaginary part of a number that is multiplied by its turn."""
    (turns,) = angles.turns

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        x, turns = sources
        if x.strides[-1] == 4 and out.strides[-1] == 4:
            return [partial(np.multiply, x.view(np.complex64), turns, out.view(np.complex64))]
        packed = scratch(x.shape)
        pairs = packed.view(np.complex64)
        return [
            partial(np.copyto, packed, x),
            partial(np.multiply, pairs, turns, pairs),
            partial(np.copyto, out, packed),
        ]

    return tiled(task, tile, [x, Operand(turns[None], F32)], out=out, whole=1)


def _halves(task: Task, angles: Angles, x: Operand, out: Operand) -> list[Step]:
    """(a, b) becomes (a, b) * cosine + (b, a) * (-sine, sine)."""
    shape = (*x.array.shape[:3], 2, angles.pairs)
    sources = [
        Operand(viewed(x.array, shape), x.dtype),
        *(Operand(turns[None], F32) for turns in angles.turns),
    ]

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        x, cosine, sine = sources
        crossed = scratch(x.shape)
        return [
            partial(np.multiply, x[..., ::-1, :], sine, crossed),
            partial(np.multiply, x, cosine, out),
            partial(np.add, out, crossed, out),
        ]

    return tiled(task, tile, sources, out=Operand(viewed(out.array, shape), out.dtype), whole=2)
