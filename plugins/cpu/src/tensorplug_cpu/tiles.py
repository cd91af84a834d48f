"""Large arrays in cache-sized tiles, shared out to threads; small ones in a single call."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tensorplug.blocks.half import bf16_to_f32, f16_to_f32, f32_to_bf16
from tensorplug.device import Array
from tensorplug.dtypes import BF16, F16, F32, DType
from tensorplug_cpu.layout import compact, distinct
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Scratch, Task
from tensorplug_cpu.threads import Step, split

TILE = 1 << 15
"""Elements of a tile: a few f32 arrays of that length stay in a level-2 cache."""
WHOLE = sys.maxsize
"""Limit of what needs no tiles: one call without temporaries."""
PARALLEL = 1 << 17
"""Elements from which on waking threads costs less than they save."""


class Temporaries:
    """Scratch arrays that the tiles of one thread use one after another."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._arrays: list[Array] = []
        self._next = 0

    def rewind(self) -> None:
        """Start the next tile: hand out the same arrays again."""
        self._next = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        size = prod(shape) * np.dtype(dtype).itemsize
        if self._next == len(self._arrays):
            self._arrays.append(self._scratch.array((size,), np.uint8))
        elif self._arrays[self._next].size < size:
            self._arrays[self._next] = self._scratch.array((size,), np.uint8)
        array: Array = self._arrays[self._next][:size].view(dtype).reshape(shape)
        self._next += 1
        return array


Compile = Callable[[Array, Sequence[Array], Temporaries], Sequence[Step]]
"""Steps for one tile: f32 result, f32 sources that broadcast to it, temporary arrays."""


def tiled(
    task: Task,
    compile_tile: Compile,
    sources: Sequence[Operand],
    *,
    out: Operand | None = None,
    whole: int = 0,
    limit: int = TILE,
) -> list[Step]:
    """Steps that compute `out` from `sources` tile by tile, in f32 whatever the types are.

    Sources broadcast to `out`. The last `whole` dimensions are not cut and may differ between
    arrays. Sources may lie exactly under `out`.
    """
    target = task.out if out is None else out
    kinds = [target.dtype, *(s.dtype for s in sources)]
    arrays = compact([target.array, *(s.array for s in sources)], keep=whole)
    shape = tuple(np.max([a.shape for a in arrays], axis=0).tolist())
    threads = task.tools.workers.count if prod(shape) >= PARALLEL else 1
    if set(kinds) != {F32}:
        limit = min(limit, TILE)
    limit = min(limit, -(-prod(shape) // threads))
    pieces = list(tiles(shape, limit, whole))
    lanes: list[list[Step]] = []
    for start, stop in split(len(pieces), threads):
        temporaries = Temporaries(task.tools.scratch)
        lanes.append([])
        for piece in pieces[start:stop]:
            temporaries.rewind()
            views = [_cut(a, piece) for a in arrays]
            lanes[-1].extend(_widened(views, kinds, compile_tile, temporaries))
    return side_by_side(task, lanes)


def side_by_side(task: Task, lanes: Sequence[Sequence[Step]]) -> list[Step]:
    """Steps that run each lane on a thread of its own; a single lane stays flat."""
    if len(lanes) < 2:
        return [step for lane in lanes for step in lane]
    return [partial(task.tools.workers.run, [partial(run_all, lane) for lane in lanes])]


def run_all(steps: Sequence[Step]) -> None:
    """Run steps in order."""
    for step in steps:
        step()


def tiles(shape: tuple[int, ...], limit: int, whole: int) -> Iterator[tuple[slice, ...]]:
    """Cut `shape` into parts of at most `limit` elements, the last `whole` dimensions uncut."""
    lead = len(shape) - whole
    axis = next((i for i in range(lead) if prod(shape[i + 1 :]) <= limit), lead - 1)
    if axis < 0:
        yield ()
        return
    step = max(1, limit // max(1, prod(shape[axis + 1 :])))
    for index in np.ndindex(shape[:axis]):
        outer = tuple(slice(i, i + 1) for i in index)
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))


def _cut(array: Array, piece: tuple[slice, ...]) -> Array:
    cut = array[piece]
    # Fewer dimensions make cheaper calls: those in front that have become 1 go.
    while cut.ndim > 1 and cut.shape[0] == 1 and len(piece) > 1:
        cut, piece = cut[0], piece[1:]
    return cut


def _widened(
    views: list[Array], kinds: Sequence[DType], compile_tile: Compile, temporaries: Temporaries
) -> Iterator[Step]:
    """The steps of a tile, between those that widen its sources and narrow its result."""
    sources = []
    for view, kind in zip(views[1:], kinds[1:], strict=True):
        if kind is F32:
            sources.append(view)
            continue
        stored = distinct(view)
        wide = temporaries(stored.shape)
        yield load(stored, kind, wide)
        sources.append(wide)
    if kinds[0] is F32:
        yield from compile_tile(views[0], sources, temporaries)
        return
    wide = temporaries(views[0].shape)
    yield from compile_tile(wide, sources, temporaries)
    yield store(wide, kinds[0], views[0])


def load(stored: Array, kind: DType, out: Array) -> Step:
    """A step that widens an array of numbers of type `kind` to f32."""
    return partial(_LOADS.get(kind, _convert), stored, out)


def store(values: Array, kind: DType, out: Array) -> Step:
    """A step that narrows an f32 array to numbers of type `kind`."""
    return partial(_STORES.get(kind, _convert), values, out)


def _convert(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="unsafe")


_LOADS = {F16: f16_to_f32, BF16: bf16_to_f32}
_STORES = {BF16: f32_to_bf16}
