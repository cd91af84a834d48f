"""Attention in one op: scores, softmax and values for a chunk of positions at a time."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.kernels.matmul import blas_ready, product
from tensorplug_cpu.kernels.softmax import slopes
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import Temporaries, load, tiled

SCORES = 1 << 20
"""Scores that are held at a time: 4 MiB."""
DECODED = 1 << 21
"""Elements of keys that are decoded at a time; and of values."""

_LOWEST = np.finfo(np.float32).min
"""What the largest score of a row starts from. A row that is masked throughout stays at zero."""
_SMALLEST = np.finfo(np.float32).tiny
_MAX = partial(np.maximum.reduce, axis=-1, keepdims=True)
_SUM = partial(np.add.reduce, axis=-1, keepdims=True)
Range = tuple[int, int]


@kernel("flash_attn_ext")
def flash_attn_ext(task: Task) -> Sequence[Step]:
    """Softmax of scaled, capped and masked scores, times values."""
    if not task["k"].array.shape[2]:
        return [partial(task.out.array.fill, 0)]
    return [step for b in range(task.out.array.shape[0]) for step in _Attention(task, b).steps()]


class _Part:
    """Some tokens of all heads: their scaled queries and what is known of their rows so far.

    Arrays are [kv heads, heads of q for each, tokens, ...].
    """

    def __init__(self, task: Task, heads: tuple[int, int], tokens: Range, size: int) -> None:
        self.tokens = tokens
        shape = (*heads, tokens[1] - tokens[0])
        self.top, self.total, self.change = (task.scratch((*shape, 1)) for _ in range(3))
        self.values = task.scratch((*shape, size))


class _Attention:
    """One batch entry. Keys and values are decoded once; all tokens use a chunk before the next."""

    def __init__(self, task: Task, batch: int) -> None:
        self._task = task
        copies = task.out.array.shape[0] // task["k"].array.shape[0]
        self._k, self._v = (
            Operand(task[name].array[batch // copies], task[name].dtype) for name in "kv"
        )
        heads, self._tokens, self._size = task["q"].array.shape[1:]
        kv_heads, self._positions = self._k.array.shape[:2]
        self._heads = (kv_heads, heads // kv_heads)
        self._q = viewed(task["q"].array[batch], (*self._heads, self._tokens, self._size))
        out = task.out.array[batch]
        self._out = viewed(out, (self._tokens, *self._heads, out.shape[-1])).transpose(1, 2, 0, 3)
        mask = task.get("mask")
        self._mask, self._mask_heads = None, 1
        if mask is not None:
            self._mask = Operand(mask.array[batch % mask.array.shape[0]], mask.dtype)
            self._mask_heads = mask.array.shape[1]

    def steps(self) -> Iterator[Step]:
        """All steps, chunk by chunk of positions."""
        heads, head = prod(self._heads), max(self._size, self._out.shape[-1])
        most = max(1, min(DECODED // (self._heads[0] * head), SCORES // heads))
        chunks = split(self._positions, -(-self._positions // most))
        longest = max(last - first for first, last in chunks)
        at_once = max(1, SCORES // (heads * longest))
        parts = [
            _Part(self._task, self._heads, tokens, self._out.shape[-1])
            for tokens in split(self._tokens, -(-self._tokens // at_once))
        ]
        widest = max(part.values.shape[2] for part in parts)
        self._queries = self._task.scratch((heads * widest * self._size,))
        self._scores = self._task.scratch((heads * widest * longest,))
        self._added = self._task.scratch((heads * widest * self._out.shape[-1],))
        for chunk in chunks:
            k, decode_k = self._floats(self._k, self._size, chunk)
            v, decode_v = self._floats(self._v, self._out.shape[-1], chunk)
            yield from (*decode_k, *decode_v)
            for part in parts:
                yield from self._scored(part, chunk, k)
                yield from self._weighted(part, chunk)
                yield from self._summed(part, chunk, v)
        for part in parts:
            yield from self._finished(part)

    def _floats(self, x: Operand, row: int, chunk: Range) -> tuple[Array, Sequence[Step]]:
        """Keys or values of a chunk as f32 that the BLAS takes, and the steps that make them so."""
        stored = x.array[:, slice(*chunk)]
        if x.dtype is F32 and blas_ready(stored):
            return stored, []
        wide = self._task.scratch((*stored.shape[:2], row))
        if not x.dtype.is_block:
            return wide, [load(stored, x.dtype, wide)]
        packed = self._task.scratch(stored.shape, np.uint8)
        rows, values = packed.reshape(-1, stored.shape[2]), wide.reshape(-1, row)
        return wide, [
            partial(np.copyto, packed, stored),
            partial(decode_rows, x.dtype, rows, values),
        ]

    def _scored(self, part: _Part, chunk: Range, k: Array) -> Sequence[Step]:
        """Scores of the part's tokens with the chunk's positions, scaled and capped."""
        cap = np.float32(self._task.number("softcap"))
        scale = np.float32(self._task.number("scale") / (float(cap) or 1.0))
        q = self._q[:, :, slice(*part.tokens)]
        queries = self._queries[: q.size].reshape(q.shape)
        scores = self._rows_of(part, chunk)
        steps: list[Step] = [
            partial(np.multiply, q, scale, queries),
            product(queries, k.swapaxes(-1, -2)[:, None], scores),
        ]
        if not cap:
            return steps
        capped = [partial(np.tanh, scores, scores), partial(np.multiply, scores, cap, scores)]
        return [*steps, *capped]

    def _rows_of(self, part: _Part, chunk: Range) -> Array:
        shape = (*part.top.shape[:3], chunk[1] - chunk[0])
        return self._scores[: prod(shape)].reshape(shape)

    def _weighted(self, part: _Part, chunk: Range) -> Sequence[Step]:
        """Scores become weights relative to the largest score so far; their sums are added up."""
        task, first = self._task, chunk[0] == 0
        split_heads = (-1, self._mask_heads, part.values.shape[2])
        per_head = (-1, self._mask_heads, 1, 1)
        names = ["scores", "top", "total", "change"]
        stats = (self._rows_of(part, chunk), part.top, part.total, part.change)
        sources = [Operand(a.reshape(*split_heads, a.shape[-1]), F32) for a in stats]
        if self._mask is not None:
            names.append("mask")
            mask = self._mask.array[:, slice(*part.tokens), slice(*chunk)]
            sources.append(Operand(mask[None], self._mask.dtype))
        if task.number("max_bias"):
            names.append("slope")
            slope = slopes(prod(self._heads), task.number("max_bias"))
            sources.append(Operand(slope.reshape(per_head), F32))
        sinks = task.get("sinks")
        if sinks is not None and first:
            names.append("sinks")
            sources.append(Operand(viewed(sinks.array, per_head), F32))

        def tile(_: Array, views: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
            named = dict(zip(names, views, strict=True))
            return [*_masked(named, scratch), *_weights(named, first=first)]

        return tiled(task, tile, sources, out=sources[0], whole=1)

    def _summed(self, part: _Part, chunk: Range, v: Array) -> Sequence[Step]:
        """Values of the chunk by weight, added to those before."""
        weights = self._rows_of(part, chunk)
        if chunk[0] == 0:
            return [product(weights, v[:, None], part.values)]
        added = self._added[: part.values.size].reshape(part.values.shape)
        return [
            product(weights, v[:, None], added),
            partial(np.multiply, part.values, part.change, part.values),
            partial(np.add, part.values, added, part.values),
        ]

    def _finished(self, part: _Part) -> Sequence[Step]:
        """The mean of values by weight; zero where everything was masked."""
        out = self._out[:, :, slice(*part.tokens)]
        return [
            partial(np.maximum, part.total, _SMALLEST, out=part.total),
            partial(np.divide, part.values, part.total, out),
        ]


def _masked(at: dict[str, Array], scratch: Temporaries) -> Sequence[Step]:
    scores, mask = at["scores"], at.get("mask")
    if mask is None:
        return []
    if "slope" not in at:
        return [partial(np.add, scores, mask, scores)]
    sloped = scratch(np.broadcast_shapes(mask.shape, at["slope"].shape))
    return [
        partial(np.multiply, mask, at["slope"], sloped),
        partial(np.add, scores, sloped, scores),
    ]


def _weights(at: dict[str, Array], *, first: bool) -> Sequence[Step]:
    """Steps that keep `top` the largest score and `total` the sum of exp(score - top)."""
    scores, top, total, change = (at[n] for n in ("scores", "top", "total", "change"))
    before = _LOWEST if first else top
    steps: list[Step] = [partial(_MAX, scores, out=change)]
    if "sinks" in at:
        steps.append(partial(np.maximum, change, at["sinks"], out=change))
    steps.append(partial(np.maximum, change, before, out=change))
    steps += [
        partial(np.subtract, scores, change, scores),
        partial(np.exp, scores, scores),
    ]
    if first:
        steps += [partial(np.copyto, top, change), partial(_SUM, scores, out=total)]
        if "sinks" in at:
            steps += [
                partial(np.subtract, at["sinks"], top, change),
                partial(np.exp, change, change),
                partial(np.add, total, change, total),
            ]
        return steps
    # `top` turns into the factor by which everything before shrinks, then into the new top.
    return [
        *steps,
        partial(np.subtract, top, change, top),
        partial(np.exp, top, top),
        partial(np.multiply, total, top, total),
        partial(_swap, top, change),
        partial(_add_sums, scores, total),
    ]


def _swap(a: Array, b: Array) -> None:
    kept = a.copy()
    np.copyto(a, b)
    np.copyto(b, kept)


def _add_sums(scores: Array, total: Array) -> None:
    np.add(total, _SUM(scores), total)
