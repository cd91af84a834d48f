"""Scores of positions for sparse attention, and the mixing of residual streams."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.kernels.matmul import blas_ready, product, ready
from tensorplug_cpu.kernels.softmax import normalised
from tensorplug_cpu.kernels.sums import sum_of_products
from tensorplug_cpu.kernels.unary import FUNCTIONS
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step, split
from tensorplug_cpu.tiles import Temporaries, load, tiled

SCORES = 1 << 18
"""Scores of single heads that are held at a time: 1 MiB, which stays in a level-2 cache."""
DECODED = 1 << 18
"""Elements of keys that are decoded at a time."""


@kernel("lightning_indexer")
def lightning_indexer(task: Task) -> Sequence[Step]:
    """Scores of all heads for some tokens and positions at a time, then their sum by weight."""
    k, out = task["k"], task.out.array
    q, steps = ready(task, task["q"])
    batch, tokens, heads, size = q.shape
    positions = k.array.shape[1]
    many = -(-positions // max(1, DECODED // max(size, 1)))
    chunks = split(positions, many)
    longest = max(last - first for first, last in chunks)
    parts = split(tokens, -(-tokens * heads * longest // SCORES))
    room = task.scratch((max(last - first for first, last in parts) * heads * longest,))
    keys = _Keys(task, k, longest, size)
    found: list[Step] = list(steps)
    for b in range(batch):
        weights = task["weights"].array[b, 0][:, None]
        for first, last in chunks:
            matrix, decoding = keys.some(b, slice(first, last))
            found += decoding
            for start, stop in parts:
                scores = room[: (stop - start) * heads * (last - first)]
                scores = scores.reshape(stop - start, heads, last - first)
                found += [
                    product(q[b, start:stop], matrix.T[None], scores),
                    partial(np.maximum, scores, np.float32(0), out=scores),
                    partial(
                        np.matmul,
                        weights[start:stop],
                        scores,
                        out[b, 0, start:stop, None, first:last],
                    ),
                ]
    return [*found, *_masked(task)]


class _Keys:
    """Keys of some positions as f32: where they lie, or decoded into one scratch array."""

    def __init__(self, task: Task, k: Operand, most: int, size: int) -> None:
        self._k = k
        self._plain = k.dtype is F32 and blas_ready(k.array[:, :, 0])
        self._wide = task.scratch((0 if self._plain else most, size))
        stored = k.array.shape[-1] if k.dtype.is_block else 0
        self._packed = task.scratch((most, stored), np.uint8)

    def some(self, batch: int, positions: slice) -> tuple[Array, Sequence[Step]]:
        """Rows of keys and the steps that decode them."""
        stored, kind = self._k.array[batch, positions, 0], self._k.dtype
        if self._plain:
            return stored, []
        wide = self._wide[: len(stored)]
        if not kind.is_block:
            return wide, [load(stored, kind, wide)]
        packed = self._packed[: len(stored)]
        return wide, [partial(np.copyto, packed, stored), partial(decode_rows, kind, packed, wide)]


def _masked(task: Task) -> Sequence[Step]:
    """Steps that add the mask, which repeats over the batch."""
    mask, out = task["mask"], task.out.array
    masks = mask.array.shape[0]
    grouped = viewed(out, (out.shape[0] // masks, masks, *out.shape[2:]))
    target = Operand(grouped, F32)

    def tile(out: Array, views: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        return [partial(np.add, out, views[0], out)]

    source = Operand(viewed(mask.array, (1, masks, *mask.array.shape[2:])), mask.dtype)
    return tiled(task, tile, [source], out=target)


@kernel("dsv4_hc_comb")
def dsv4_hc_comb(task: Task) -> Sequence[Step]:
    """A softmax, then sums of columns and rows become 1 in turn."""
    streams = task.node.ne[0]
    shape = (1, task.node.ne[2], streams, streams)
    first = 2 * streams
    sources = [
        viewed(task["mixes"].array[..., first:], shape),
        task["scale"].array[..., 2:3],
        viewed(task["base"].array[..., first:], (1, 1, streams, streams)),
    ]
    eps, rounds = np.float32(task.number("eps")), task.integer("n_iter")

    def tile(out: Array, views: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        mixes, scale, base = views
        rows, columns = scratch((*out.shape[:-1], 1)), scratch((*out.shape[:-2], 1, streams))
        steps: list[Step] = [
            partial(np.multiply, mixes, scale, out),
            partial(np.add, out, base, out),
            *normalised(out, None, scratch),
            partial(np.add, out, eps, out),
            *_evened(out, columns, -2, eps),
        ]
        for _ in range(rounds - 1):
            steps += [*_evened(out, rows, -1, eps), *_evened(out, columns, -2, eps)]
        return steps

    return tiled(task, tile, [Operand(a, F32) for a in sources], whole=2)


def _evened(x: Array, sums: Array, axis: int, eps: np.float32) -> Iterator[Step]:
    yield partial(np.add.reduce, x, axis=axis, keepdims=True, out=sums)
    yield partial(np.add, sums, eps, sums)
    yield partial(np.divide, x, sums, x)


@kernel("dsv4_hc_pre")
def dsv4_hc_pre(task: Task) -> Sequence[Step]:
    """One product for each stream."""
    x, weights, out = task["x"].array, task["weights"].array, task.out.array
    scale = np.float32(task.number("scale"))
    streams = range(x.shape[2])
    if task.node.params["gated"]:
        steps = _gated(task, [(x[:, None, :, h], weights[:, None, :, h]) for h in streams])
    else:
        pairs = [(x[:, None, :, h], weights[..., h, None]) for h in streams]
        steps = sum_of_products(task, pairs, out)
    return steps if scale == 1 else [*steps, partial(np.multiply, out, scale, out)]


def _gated(task: Task, pairs: Sequence[tuple[Array, Array]]) -> list[Step]:
    sigmoid = FUNCTIONS["sigmoid"]

    def tile(out: Array, views: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        gate = scratch(out.shape)
        steps: list[Step] = []
        for i, (x, raw) in enumerate(zip(views[::2], views[1::2], strict=True)):
            steps += sigmoid(raw, gate, scratch)
            steps.append(partial(np.multiply, x, gate, gate if i else out))
            if i:
                steps.append(partial(np.add, out, gate, out))
        return steps

    return tiled(task, tile, [Operand(array, F32) for pair in pairs for array in pair])


@kernel("dsv4_hc_post")
def dsv4_hc_post(task: Task) -> Sequence[Step]:
    """One product for what is added, one for each stream that is mixed in."""
    x, residual, post = (task[name].array for name in ("x", "residual", "post"))
    comb = task.get("comb")
    pairs = [(x[:, 0, :, None], post[:, 0, ..., None])]
    if comb is None:
        pairs.append((residual, np.ones((1, 1, 1, 1), np.float32)))
    else:
        pairs += [
            (residual[:, :, s : s + 1], comb.array[:, :, s, :, None])
            for s in range(residual.shape[2])
        ]
    return sum_of_products(task, pairs, task.out.array)
