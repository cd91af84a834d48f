"""Sixty-five mistakes that are planted in kernels, of five kinds; the kit's own cases catch each.

A mutant wraps a kernel: it changes what the kernel is given, or what it leaves behind. Mistakes
that only large tensors have appear from `TILE` elements on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import tensorplug as tp
from tensorplug.blocks.rows import decode_rows
from tensorplug.device import Array
from tensorplug.dtypes import F32
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Kernel, Task
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import TILE

Plant = Callable[[Kernel, Task], Sequence[Step]]
Change = Callable[[Array], Any]


@dataclass(frozen=True)
class Mutant:
    """One mistake in the kernel of one op."""

    kind: str
    op: str
    what: str
    plant: Plant


def _index(task: Task, name: str) -> int:
    return tp.OPS[task.node.op].positions[name]


def _with_source(task: Task, name: str, operand: Operand) -> Task:
    operands = list(task.operands)
    operands[_index(task, name)] = operand
    return replace(task, operands=tuple(operands))


def _values(operand: Operand) -> Array:
    """A copy of what a source holds, in f32 where it has blocks."""
    if not operand.dtype.is_block:
        return np.array(operand.array)
    rows = np.ascontiguousarray(operand.array).reshape(-1, operand.array.shape[-1])
    k = operand.array.shape[-1] // operand.dtype.size * operand.dtype.block
    wide = np.empty((len(rows), k), np.float32)
    decode_rows(operand.dtype, rows, wide)
    return wide.reshape(*operand.array.shape[:-1], k)


# --- ways to plant -------------------------------------------------------------------------------


def after(change: Callable[[Task], None]) -> Plant:
    """Change the result, or other memory, when the kernel is done."""
    return lambda kernel, task: [*kernel(task), partial(change, task)]


def lost(place: Callable[[int], int | slice], *, least: int = TILE) -> Plant:
    """Elements that are never written, of results with more than `least` elements."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        out = task.out.array
        if out.size <= least:
            return kernel(task)
        where = np.unravel_index(np.arange(out.size)[place(out.size)], out.shape)
        kept = np.array(out[where])

        def restore() -> None:
            out[where] = kept

        return [*kernel(task), restore]

    return plant


def given(name: str, change: Change, *, least: int = 0) -> Plant:
    """Compute with a copy of a source that is changed first; in f32 where it has blocks."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        source = task.get(name)
        if source is None or source.array.size <= least:
            return kernel(task)
        copy = _values(source)

        def renew() -> None:
            copy[...] = _values(source)
            change(copy)

        dtype = F32 if source.dtype.is_block else source.dtype
        return [renew, *kernel(_with_source(task, name, Operand(copy, dtype)))]

    return plant


def frozen(name: str) -> Plant:
    """A source is read in the first run of a plan only."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        source = task.get(name)
        if source is None:
            return kernel(task)
        copy, runs = _values(source), [0]

        def read_once() -> None:
            if not runs[0]:
                copy[...] = _values(source)
            runs[0] += 1

        dtype = F32 if source.dtype.is_block else source.dtype
        return [read_once, *kernel(_with_source(task, name, Operand(copy, dtype)))]

    return plant


def only_once(kernel: Kernel, task: Task) -> Sequence[Step]:
    """The second run of a plan computes nothing and puts the first result back."""
    runs: list[Array] = []
    steps = kernel(task)

    def run() -> None:
        if runs:
            task.out.array[...] = runs[0]
            return
        for step in steps:
            step()
        runs.append(np.array(task.out.array))

    return [run]


def accumulated(kernel: Kernel, task: Task) -> Sequence[Step]:
    """Sums of a run begin with those of the run before."""
    before = np.zeros_like(task.out.array)

    def add() -> None:
        np.add(task.out.array, before, out=task.out.array, casting="unsafe")
        before[...] = task.out.array

    return [*kernel(task), add]


def packed(name: str) -> Plant:
    """A source is read as if it lay without gaps and in order."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        source = task.get(name)
        if source is None:
            return kernel(task)
        array = source.array
        steps = np.cumprod([array.itemsize, *array.shape[:0:-1]])[::-1]
        view = as_strided(array, array.shape, steps, writeable=False)
        return kernel(_with_source(task, name, replace(source, array=view)))

    return plant


def modulo(name: str, other: str) -> Plant:
    """A source repeats over the batch side by side, where it must repeat in blocks."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        few, many = task[name], task[other]
        times = [b // a for a, b in zip(few.array.shape[:2], many.array.shape[:2], strict=True)]
        if times == [1, 1] or not few.array.size:
            return kernel(task)
        copy = np.tile(few.array, (*times, 1, 1))

        def renew() -> None:
            copy[...] = np.tile(few.array, (*times, 1, 1))

        return [renew, *kernel(_with_source(task, name, replace(few, array=copy)))]

    return plant


def in_blocks(name: str, other: str) -> Plant:
    """A source repeats along dim 3 in blocks, where it must repeat side by side."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        few, many = task[name], task[other]
        times = many.array.shape[0] // max(1, len(few.array))
        if times <= 1 or len(few.array) == 1:
            return kernel(task)
        copy = np.repeat(few.array, times, axis=0)

        def renew() -> None:
            copy[...] = np.repeat(few.array, times, axis=0)

        return [renew, *kernel(_with_source(task, name, replace(few, array=copy)))]

    return plant


def from_the_start(name: str) -> Plant:
    """A source is read from the start of the memory that it is a view of."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        source, offset = task[name], task.source(name).view_offset
        if not (offset and source.array.size):
            return kernel(task)
        array = source.array
        first = -offset // array.itemsize
        whole = _beside(array, first, _reach(array) + 1)
        view = as_strided(whole, array.shape, array.strides, writeable=False)
        return kernel(_with_source(task, name, replace(source, array=view)))

    return plant


def with_mean_square(wrong: Callable[[Array, float], Array], *, many: bool) -> Plant:
    """Rows are divided by the root of another mean square, of a single row or of many."""

    def plant(kernel: Kernel, task: Task) -> Sequence[Step]:
        source, eps = task["x"].array, task.number("eps")
        if (task.node.size > task.node.ne[0]) != many:
            return kernel(task)
        factor = np.empty((*source.shape[:-1], 1))

        def measure() -> None:
            x = source.astype(np.float64)
            right = (x * x).mean(axis=-1, keepdims=True) + eps
            np.sqrt(right / wrong(x, eps), out=factor)

        def scale() -> None:
            out = task.out.array
            np.multiply(out, factor, out=out, casting="unsafe")

        return [measure, *kernel(task), scale]

    return plant


# --- changes -------------------------------------------------------------------------------------


def last_zero(values: Array) -> None:
    """The last element counts for nothing."""
    values[..., -1:, -1:, -1:, -1:] = 0


def last_block(factor: float, *, rows: slice = slice(-1, None)) -> Change:
    """The last 32 elements of rows are a little larger."""

    def change(values: Array) -> None:
        part = values[-1:, -1:, rows, -32:]
        np.multiply(part, factor, out=part, casting="unsafe")

    return change


def to_bf16(values: Array) -> None:
    """Numbers lose the lower half of their bits."""
    if values.dtype == np.float32:
        values.view(np.uint32)[...] &= np.uint32(0xFFFF0000)


def to_f16(values: Array) -> None:
    """Numbers are kept in f16 on the way."""
    if values.dtype == np.float32:
        with np.errstate(over="ignore"):
            values[...] = values.astype(np.float16)


def without_tiny(values: Array) -> None:
    """Numbers nearer to 0 than 1e-6 become 0."""
    values[np.abs(values) < 1e-6] = 0


def by(factor: float) -> Change:
    """Numbers are a little larger."""

    def change(values: Array) -> None:
        if values.dtype.kind == "f":
            np.multiply(values, factor, out=values, casting="unsafe")

    return change


def single(factor: float) -> Change:
    """The largest number of many is a little larger."""

    def change(values: Array) -> None:
        if values.dtype.kind == "f" and values.size > 100:
            at = np.unravel_index(np.abs(values).argmax(), values.shape)
            values[at] *= factor

    return change


def result(change: Change) -> Plant:
    """Change the values of the result."""
    return after(lambda task: change(task.out.array))


def turned(angle: float) -> Plant:
    """The positions of odd tokens are a fraction too high: their first pairs turn on by it."""

    def turn(task: Task) -> None:
        out, mode = task.out.array, task.node.params["mode"]
        pairs = task.integer("dims") // 2
        if out.dtype != np.float32 or mode not in ("normal", "neox"):
            return
        frequency = task.number("base") ** (-np.arange(pairs) / pairs) * angle
        odd = out[:, 1::2, :, : 2 * pairs]
        a, b = (
            (odd[..., ::2], odd[..., 1::2])
            if mode == "normal"
            else (odd[..., :pairs], odd[..., pairs:])
        )
        cosine, sine = np.cos(frequency), np.sin(frequency)
        a[...], b[...] = a * cosine - b * sine, a * sine + b * cosine

    return after(turn)


def _beside(array: Array, first: int, count: int) -> Array:
    """Elements of the memory that `array` begins in, counted from its start."""
    start = as_strided(array, (1,), (array.itemsize,))
    interface = dict(start.__array_interface__)
    address, read_only = interface["data"]
    interface["data"] = (address + first * array.itemsize, read_only)
    interface["shape"] = (count,)
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())


def _reach(array: Array) -> int:
    steps = zip(array.shape, array.strides, strict=True)
    return int(sum((n - 1) * s for n, s in steps) // array.itemsize)


def beyond(task: Task) -> None:
    """One element after the result is written."""
    if task.out.array.size:
        _beside(task.out.array, _reach(task.out.array) + 1, 1)[...] = 1


def before(task: Task) -> None:
    """One element before the result is written."""
    if task.out.array.size:
        _beside(task.out.array, -1, 1)[...] = 1


def vectors(task: Task) -> None:
    """Results are written in vectors of sixteen, the last one too."""
    rest = -task.out.array.size % 16
    if task.out.array.size and rest:
        _beside(task.out.array, _reach(task.out.array) + 1, rest)[...] = 0


def gaps(task: Task) -> None:
    """The gap after the first row of the result is written."""
    out = task.out.array
    if out.size and out.strides[2] > out.shape[3] * out.itemsize and out.shape[2] > 1:
        _beside(out, out.shape[3], 1)[...] = 1


def overwritten(name: str) -> Plant:
    """The first element of a source is changed."""

    def change(task: Task) -> None:
        source = task.get(name)
        if source is not None and source.array.size:
            view = source.array[:1, :1, :1, :1]
            view[...] = ~view if view.dtype.kind in "iu" else view + 1

    return after(change)


_LAST, _SEAM = (lambda size: slice(size - 1, size)), (lambda _: slice(TILE - 1, TILE))
_NEXT = lambda _: slice(TILE, TILE + 1)  # noqa: E731
_VECTOR = lambda size: slice(size - size % 8, size)  # noqa: E731

_TAIL = [
    *[
        (op, "last element of the last tile not written", lost(_LAST))
        for op in (
            "add",
            "silu",
            "mul_mat",
            "soft_max",
            "conv_2d",
            "argsort",
            "set_rows",
            "upscale",
        )
    ],
    ("mul", "last element of the first tile not written", lost(_SEAM)),
    ("rope", "first element of the second tile not written", lost(_NEXT)),
    ("cumsum", "elements after the last whole vector of 8 not written", lost(_VECTOR, least=7)),
    ("sum", "last element of many not added", given("x", last_zero, least=TILE)),
    ("argmax", "last element of many not compared", given("x", last_zero, least=TILE)),
    (
        "rms_norm",
        "last square of a single row not added",
        with_mean_square(
            lambda x, eps: (x[..., :-1] ** 2).sum(-1, keepdims=True) / x.shape[-1] + eps, many=False
        ),
    ),
]
_STRIDE = [
    *[
        (op, f"{name} read as if it had no gaps", packed(name))
        for op, name in (
            ("mul_mat", "x"),
            ("mul_mat", "w"),
            ("flash_attn_ext", "k"),
            ("flash_attn_ext", "mask"),
            ("rms_norm", "x"),
            ("rope", "x"),
            ("get_rows", "ids"),
            ("conv_2d", "x"),
            ("ssm_conv", "kernel"),
        )
    ],
    ("mul_mat", "batches repeat side by side instead of in blocks", modulo("w", "x")),
    ("out_prod", "batches repeat side by side instead of in blocks", modulo("a", "b")),
    ("mul", "b repeats along dim 3 in blocks instead of side by side", in_blocks("b", "a")),
    ("sum_rows", "x read from the start of what it is a view of", from_the_start("x")),
]
_EVERY = slice(None)
_ROUNDING = [
    ("rope", "odd positions 0.001 too high", turned(0.001)),
    ("rope", "odd positions 0.01 too high", turned(0.01)),
    ("mul_mat", "last block of the last row 1 % too large", given("w", last_block(1.01))),
    ("mul_mat", "last block of every row 1 % too large", given("w", last_block(1.01, rows=_EVERY))),
    ("mul_mat_id", "last block of the last row 1 % too large", given("w", last_block(1.01))),
    ("out_prod", "last block of the last row 1 % too large", given("a", last_block(1.01))),
    ("get_rows", "last block of the last row 1 % too large", given("table", last_block(1.01))),
    (
        "rms_norm",
        "eps left out where there are many rows",
        with_mean_square(lambda x, _: (x * x).mean(axis=-1, keepdims=True), many=True),
    ),
    ("mul_mat", "weights cut to bf16", given("w", to_bf16)),
    ("flash_attn_ext", "keys cut to bf16", given("k", to_bf16)),
    ("add", "results kept in f16", result(to_f16)),
    ("rms_norm", "results cut to bf16", result(to_bf16)),
    ("soft_max", "results 0.2 % too large", result(by(1.002))),
    ("silu", "results below 1e-6 are 0", result(without_tiny)),
    ("swiglu", "results below 1e-6 are 0", result(without_tiny)),
    ("group_norm", "a single element 2 % too large", result(single(1.02))),
    ("flash_attn_ext", "a single element 2 % too large", result(single(1.02))),
]
_STALE = [
    *[
        (op, f"{name} of the first run kept", frozen(name))
        for op, name in (
            ("rope", "positions"),
            ("soft_max", "mask"),
            ("get_rows", "ids"),
            ("set_rows", "ids"),
            ("mul_mat", "w"),
            ("mul_mat_id", "ids"),
            ("flash_attn_ext", "mask"),
            ("flash_attn_ext", "v"),
            ("add", "b"),
            ("conv_2d", "kernel"),
        )
    ],
    ("rms_norm", "result of the first run kept", only_once),
    ("out_prod", "sums go on from the run before", accumulated),
]
_MEMORY = [
    *[(op, "an element after the result written", after(beyond)) for op in ("add", "get_rows")],
    *[(op, "an element before the result written", after(before)) for op in ("mul", "im2col")],
    *[(op, "whole vectors of 16 written", after(vectors)) for op in ("gelu", "mul_mat", "cumsum")],
    *[(op, "gap between rows written", after(gaps)) for op in ("cpy", "set_rows")],
    *[
        (op, f"{name} overwritten", overwritten(name))
        for op, name in (("soft_max", "mask"), ("rope", "positions"))
    ],
]

MUTANTS = [
    Mutant(kind, *row)
    for kind, rows in {
        "tail": _TAIL,
        "stride": _STRIDE,
        "rounding": _ROUNDING,
        "stale state": _STALE,
        "memory": _MEMORY,
    }.items()
    for row in rows
]
