"""Products on a GPU by type of weights: with one column, and with many by each way to multiply."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from cuda_measure import Bench, Figure, NotRun, seconds, streams

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.errors import TensorplugError
from tensorplug.ops.matmul import WEIGHTS
from tensorplug_cpu.reference import decode, encode
from tensorplug_testing.cases.blocks import HALF_SCALES, random_rows

FLOATS = (tp.F32, tp.F16, tp.BF16)
BLOCKS = tuple(sorted((t for t in WEIGHTS if t.is_block), key=lambda t: t.id))
COMMON = "f16 bf16 q8_0 q4_0 q5_0 q4_K q6_K"
"""Types of products with many columns, unless others are asked for."""
SEVERAL = 16
"""Rows that are drawn; a matrix repeats them."""


def types(names: str, usual: str) -> list[tp.DType]:
    """Types by name, or all that weights can have."""
    if (names or usual) == "all":
        return [*FLOATS, *BLOCKS]
    return [tp.dtype(name) for name in (names or usual).split()]


def rows(dtype: tp.DType, length: int) -> Any:
    """Stored rows, of a size that keeps the products of many in a row near 1."""
    random, size = np.random.default_rng(3), 1 / np.sqrt(length)
    if dtype not in HALF_SCALES:
        drawn = random.standard_normal((SEVERAL, length)).astype(np.float32)
        return encode(dtype, drawn * size).reshape(SEVERAL, -1)
    # These are slow or impossible to encode: random bytes will do, with scales of the right size.
    stored = random_rows(random, dtype, (SEVERAL, length))
    factor = size / np.std(decode(dtype, stored))
    blocks = stored.reshape(-1, dtype.size)
    for at in HALF_SCALES[dtype]:
        scale = blocks[:, at : at + 2].copy().view("<f2") * factor
        blocks[:, at : at + 2] = scale.astype("<f2").view(np.uint8)
    return blocks.reshape(SEVERAL, -1)


@contextmanager
def chain(
    stream: Backend, dtype: tp.DType, side: int, count: int, columns: int, *, walks: int = 1
) -> Iterator[tp.Schedule]:
    """Products with `count` square matrices in a row: each needs the one before, none overlap.

    A run goes through all of them `walks` times.
    """
    stored = np.tile(rows(dtype, side), (-(-side // SEVERAL), 1))[:side]
    data = np.random.default_rng(5).standard_normal((columns, side)).astype(np.float32)
    placed = [stream.place(f"w{i}", stored, dtype=dtype, usage=tp.WEIGHTS) for i in range(count)]
    y = x = stream.place("x", data)
    for w in placed * walks:
        y = tp.mul_mat(w, y)
    try:
        with tp.Scheduler([stream]) as scheduler, scheduler.schedule(y) as schedule:
            yield schedule
    finally:
        stream.synchronize()
        for tensor in (*placed, x):
            assert tensor.place is not None
            tensor.place.buffer.close()


def took(bench: Bench, schedule: tp.Schedule, stream: Backend) -> float:
    """Seconds of one run."""
    return seconds(lambda: schedule.run({}), stream.synchronize, bench.sizes.seconds)


# --- one column ----------------------------------------------------------------------------------


def matvec(bench: Bench) -> dict[str, Any]:
    """GB/s of stored weights, by type."""
    sizes = bench.sizes
    with streams() as (stream,):
        found = {
            dtype.name: tried(partial(one_column, bench, stream, dtype))
            for dtype in types(bench.arguments.types, "all")
        }
    blocks = {name: found[name] for name in (t.name for t in BLOCKS) if name in found}
    measured = {name: figure for name, figure in blocks.items() if isinstance(figure, Figure)}
    if measured:
        slowest = min(measured, key=lambda name: measured[name].share)
        bench.ask("matvec", measured[slowest], f"{slowest}, of {len(measured)} types")
    return {"side": sizes.side, "matrices": sizes.chain, "types": found}


def one_column(bench: Bench, stream: Backend, dtype: tp.DType) -> Figure:
    """Speed of one type; on a GPU its matrices together are larger than the L2 cache.

    A run begins with a wait; `walks` walks in a run make it a small part of the time.
    """
    sizes = bench.sizes
    with chain(stream, dtype, sizes.side, sizes.chain, 1, walks=sizes.walks) as schedule:
        stored = sizes.walks * sizes.chain * sizes.side * dtype.row_size(sizes.side)
        rate = stored / took(bench, schedule, stream) / 1e9
    return bench.figure(dtype.name, rate, "GB/s", of="bandwidth")


def tried(measure: Callable[[], Figure]) -> Figure | dict[str, str]:
    """A figure, or why there is none: one type does not end the others."""
    try:
        return measure()
    except (NotRun, TensorplugError, MemoryError) as error:
        return {"not run": f"{type(error).__name__}: {error}"}


# --- many columns --------------------------------------------------------------------------------


def products(bench: Bench) -> dict[str, Any]:
    """TFLOP/s by value of TENSORPLUG_CUDA_PRODUCTS, number of columns and type."""
    found: dict[str, Any] = {}
    for way in bench.ways:
        bench.progress(way)
        try:
            with streams(products=way) as (stream,):
                found[way] = many_columns(bench, stream)
        except NotRun as reason:
            found[way] = {"not run": str(reason)}
    return {"side": bench.sizes.product_side, "ways": found}


def many_columns(bench: Bench, stream: Backend) -> dict[str, Any]:
    """All types, by number of columns."""
    wanted = types(bench.arguments.types, COMMON)
    return {
        str(columns): {
            dtype.name: tried(partial(some_columns, bench, stream, dtype, columns))
            for dtype in wanted
        }
        for columns in bench.sizes.columns
    }


def some_columns(bench: Bench, stream: Backend, dtype: tp.DType, columns: int) -> Figure:
    """Speed of one type."""
    sizes = bench.sizes
    side, count = sizes.product_side, sizes.chain
    with chain(stream, dtype, side, count, columns) as schedule:
        work = 2 * count * side * side * columns
        rate = work / took(bench, schedule, stream) / 1e12
    return bench.figure(f"{dtype.name}, {columns} columns", rate, "TFLOP/s", of="bf16")
