"""Element by element: arithmetic of two tensors and of a tensor with constants."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.kernels.ids import RowIds
from tensorplug_cpu.layout import viewed
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import TILE, WHOLE, Temporaries, tiled
from tensorplug_cpu.whole import Params, reader, whole, write

_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@kernel("add", "sub", "mul", "div")
def arithmetic(task: Task) -> Sequence[Step]:
    """Two tensors; the second repeats to the shape of the first."""
    if task["a"].dtype.is_block or task.out.dtype.is_block:
        return encoded_sum(task)
    function = _ARITHMETIC[task.node.op]
    a, b, out = repeated(task["a"], task["b"], task.out)

    def tile(out: Array, sources: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        return [partial(function, *sources, out)]

    return tiled(task, tile, [a, b], out=out, limit=WHOLE)


def encoded_sum(task: Task) -> Sequence[Step]:
    """The sum of blocks and floats: blocks are decoded, added to, and encoded again."""
    read_a, read_b, shape = reader(task["a"]), reader(task["b"]), task.node.ne[::-1]

    def step() -> None:
        a, b = read_a(), read_b()
        times = [large // max(small, 1) for large, small in zip(shape, b.shape, strict=True)]
        write(a + np.tile(b, times), task.out)

    return [step]


def repeated(a: Operand, b: Operand, out: Operand) -> tuple[Operand, Operand, Operand]:
    """Split dimensions so that copies of `b` side by side become plain broadcasting."""
    large: list[int] = []
    small: list[int] = []
    for n, m in zip(out.array.shape, b.array.shape, strict=True):
        large += [n // m, m] if m != 1 else [n, 1]
        small += [1, m]
    split = tuple(large)
    return (
        Operand(viewed(a.array, split), a.dtype),
        Operand(viewed(b.array, tuple(small)), b.dtype),
        Operand(viewed(out.array, split), out.dtype),
    )


@kernel("add_id")
def add_id(task: Task) -> Sequence[Step]:
    """Rows plus the rows that ids name."""
    a, out, table = task["a"].array[0], task.out.array[0], task["b"].array[0, 0]
    ids = RowIds(task)
    tokens, used, row = out.shape
    step = max(1, TILE // (used * row))
    gathered = task.scratch((min(step, tokens), used, row))
    chosen, named = (a.reshape(tokens, used) for a in (ids.values, ids.named))

    def run() -> None:
        ids()
        for start in range(0, tokens, step):
            part = slice(start, min(start + step, tokens))
            rows = gathered[: part.stop - start]
            table.take(chosen[part], axis=0, out=rows, mode="clip")
            if not ids.all_named:
                rows[~named[part]] = 0
            np.add(a[part], rows, out[part])

    return [run]


@kernel("scale")
def scale(task: Task) -> Sequence[Step]:
    """`scale * x + bias`."""
    factor, bias = np.float32(task.number("scale")), np.float32(task.number("bias"))

    def tile(out: Array, sources: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        (x,) = sources
        steps: list[Step] = [partial(np.multiply, x, factor, out)]
        return [*steps, partial(np.add, out, bias, out)] if bias else steps

    return tiled(task, tile, [task["x"]])


@kernel("clamp")
def clamp(task: Task) -> Sequence[Step]:
    """Values held between two bounds."""
    low, high = np.float32(task.number("min")), np.float32(task.number("max"))

    def tile(out: Array, sources: Sequence[Array], _: Temporaries) -> Sequence[Step]:
        (x,) = sources
        return [partial(np.maximum, x, low, out=out), partial(np.minimum, out, high, out=out)]

    return tiled(task, tile, [task["x"]])


@kernel("leaky_relu")
def leaky_relu(task: Task) -> Sequence[Step]:
    """Positive values, and the others scaled down."""
    slope = np.float32(task.number("slope"))

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        (x,) = sources
        positive, scaled = scratch(x.shape, np.bool_), scratch(x.shape)
        return [
            partial(np.greater, x, 0, positive),
            partial(np.multiply, x, slope, scaled),
            partial(np.copyto, scaled, x, where=positive),
            partial(np.copyto, out, scaled),
        ]

    return tiled(task, tile, [task["x"]])


@kernel("fill")
def fill(task: Task) -> Sequence[Step]:
    """One value everywhere."""
    value = np.float32(task.number("value"))

    def tile(out: Array, _: Sequence[Array], __: Temporaries) -> Sequence[Step]:
        return [partial(np.copyto, out, value)]

    return tiled(task, tile, [], limit=WHOLE)


@kernel("arange")
def arange(task: Task) -> Sequence[Step]:
    """An even series, computed once."""
    steps = np.arange(task.node.ne[0], dtype=np.float64)
    values = (task.number("start") + steps * task.number("step")).astype(np.float32)
    return [partial(np.copyto, task.out.array, values)]


@whole("add1")
def add1(_: Params, a: Array, b: Array) -> Array:
    """One number added to all."""
    total: Array = a + b.flat[0]
    return total
