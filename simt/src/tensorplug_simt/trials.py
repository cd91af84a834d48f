"""Memory in which several ways to compute one node are tried: random operands, and results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tensorplug.device import Array, Buffer, OutOfMemory, Tensor
from tensorplug.dtypes import (
    BF16,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Q8_1,
    Q8_K,
    DType,
)
from tensorplug_simt.merging import Placed
from tensorplug_simt.placing import ALIGNMENT
from tensorplug_simt.program import Program, Region, blocks_of

if TYPE_CHECKING:
    from tensorplug_simt.device import SimtDevice

PERIOD = 65537
"""Elements or blocks after which operands repeat: a prime, so that no two rows are the same."""
PARTS, PART = 1024, 2**16
"""So many parts of so many elements are compared of a result that is larger than all of them."""
HIDDEN = 0.5
"""The share of a mask that hides."""
UNWRITTEN = 0xFF
"""Byte of results before they are computed: floats of it are no numbers."""
SPARE = ALIGNMENT
"""Bytes behind each tensor, which nobody may write."""
EXPONENTS = {MXFP4: (0, 0x78), Q8_K: (3, 0x3C)}
"""Where a block has the exponent of its scale, and the lowest of four values that suit it."""

SIZES = {
    Q4_0: 2,
    Q4_1: 3,
    Q5_0: 4,
    Q5_1: 7,
    Q8_0: 31,
    Q8_1: 31,
    Q8_K: 38,
    IQ4_NL: 30,
    Q2_K: 7,
    Q3_K: 20,
    Q4_K: 110,
    Q5_K: 230,
    Q6_K: 590,
    IQ4_XS: 560,
    IQ2_XXS: 18,
    IQ2_XS: 20,
    IQ2_S: 21,
    IQ3_XXS: 47,
    IQ3_S: 52,
    MXFP4: 0.08,
}
"""How large `numbers` are (root mean square), where that is not about 1."""

Drawing = Callable[[Tensor, np.random.Generator], Array]
"""Bytes of an operand, which repeat."""
Rows = TypeVar("Rows", Tensor, Region)


@dataclass(frozen=True)
class Trials:
    """`memory` has a buffer for each tensor, and under None the scratch memory.

    `starts` are bytes to the first elements: as far from an aligned address as they are in use.
    """

    memory: Mapping[Tensor | None, Buffer]
    starts: Mapping[Tensor | None, int]
    written: frozenset[Tensor | None]

    def placed(self, program: Program) -> list[Placed]:
        """The launches of a program, in this memory."""
        return [
            Placed(
                launch,
                tuple(self.memory[region.tensor] for region in launch.regions.values()),
                tuple(self.starts[r.tensor] + r.offset for r in launch.regions.values()),
            )
            for launch in program.launches
        ]

    def clear(self) -> None:
        """Forget all results."""
        for tensor in self.written:
            self.memory[tensor].fill(UNWRITTEN)

    def intact(self) -> bool:
        """Whether nothing was written behind the results."""
        ends = [self.memory[tensor] for tensor in self.written]
        return all((end.read(end.size - SPARE, SPARE) == UNWRITTEN).all() for end in ends)

    def result(self, node: Tensor) -> Array:
        """The f32 values of a node: all, or parts of them that go from the first to the last."""
        buffer, first, count = self.memory[node], self.starts[node], node.nbytes // 4
        if count <= PARTS * PART:
            return buffer.read(first, node.nbytes).view(np.float32)
        starts = np.linspace(0, count - PART, PARTS).astype(int)
        parts = [buffer.read(first + 4 * int(start), 4 * PART) for start in starts]
        return np.concatenate(parts).view(np.float32)


@contextmanager
def trials(
    device: "SimtDevice", programs: Mapping[str, Program], operand: Drawing, *, most: int
) -> Iterator[Trials]:
    """Memory for any of the programs, given back at the end; `operand` says what is in it.

    Raises OutOfMemory where it is more than `most` bytes, or than half of what is free.
    """
    ends: dict[Tensor | None, int] = {None: max(p.scratch for p in programs.values())}
    below: dict[Tensor | None, int] = {}
    written: set[Tensor | None] = {None}
    for launch in (launch for program in programs.values() for launch in program.launches):
        for name, region in launch.regions.items():
            tensor = region.tensor
            low, high = (region.offset + edge for edge in region.span)
            ends[tensor] = max(ends.get(tensor, 1), high)
            below[tensor] = min(below.get(tensor, 0), low)
            # Absent buffers are the first one, with nothing in it.
            if name in launch.kernel.writes and region.nbytes:
                written.add(tensor)
    starts = {t: blocks_of(-below.get(t, 0), ALIGNMENT) * ALIGNMENT + _skew(t) for t in ends}
    sizes = {tensor: starts[tensor] + end for tensor, end in ends.items()}
    total, most = sum(sizes.values()), min(most, device.memory().free // 2)
    if total > most:
        raise OutOfMemory(f"{device.name}: a trial takes {total} bytes and may take {most}")
    random = np.random.default_rng(0)
    with ExitStack() as open_:
        memory = {}
        for tensor, size in sizes.items():
            buffer = memory[tensor] = device.buffer_type.alloc(size + SPARE)
            open_.enter_context(buffer)
            if tensor is not None and tensor not in written:
                _fill(buffer, _skew(tensor), operand(tensor, random))
        yield Trials(memory, starts, frozenset(written))


def _skew(tensor: Tensor | None) -> int:
    """How far from an aligned address a tensor starts: paths of kernels depend on it."""
    return tensor.view_offset % ALIGNMENT if tensor is not None else 0


def _fill(buffer: Buffer, first: int, pattern: Array) -> None:
    for start in range(first, buffer.size, pattern.size):
        buffer.write(start, pattern[: buffer.size - start])


def numbers(dtype: DType, random: np.random.Generator, size: float = 1.0) -> Array:
    """Bytes of numbers around 0, of about `size` where they are floats.

    Those of blocks have scales below 2 and are as large as `SIZES` says.
    """
    if dtype.is_block:
        # Without the highest bit of their exponents, scales are numbers below 2.
        blocks = random.integers(0, 256, (PERIOD, dtype.size), np.uint8) & np.uint8(0xBF)
        if dtype in EXPONENTS:
            place, lowest = EXPONENTS[dtype]
            blocks[:, place] = lowest + (blocks[:, place] & 3)
        return blocks.reshape(-1)
    values = random.standard_normal(PERIOD, np.float32) * np.float32(size)
    if dtype is BF16:
        return _bytes(values.view(np.uint32) >> 16, dtype)
    return _bytes(values, dtype)


def indices(dtype: DType, count: int) -> Array:
    """Bytes of the integers below `count`, in turns."""
    return _bytes(np.arange(PERIOD) % count, dtype)


def mask(dtype: DType, random: np.random.Generator) -> Array:
    """Bytes of a mask of floats: numbers around 0, or what hides a score."""
    values = random.standard_normal(PERIOD, np.float32)
    return _bytes(np.where(random.random(PERIOD) < HIDDEN, -np.inf, values), dtype)


def _bytes(values: Array, dtype: DType) -> Array:
    return values.astype(dtype.storage).view(np.uint8)


def difference(found: Array, wanted: Array) -> tuple[float, float]:
    """The normalised mean square error, and the largest error by the root mean square of `wanted`.

    Both are infinite where a value is no number.
    """
    errors = squares = largest = 0.0
    for start in range(0, wanted.size, PART):
        want, have = (a[start : start + PART].astype(np.float64) for a in (wanted, found))
        if not (np.isfinite(want).all() and np.isfinite(have).all()):
            return float("inf"), float("inf")
        off = np.abs(have - want)
        errors, squares = errors + float(off @ off), squares + float(want @ want)
        largest = max(largest, float(off.max()))
    squares = max(squares, float(np.finfo(np.float64).tiny))
    return errors / squares, largest / float(np.sqrt(squares / max(wanted.size, 1)))


def some(count: int, most: int) -> int:
    """How many of `count` rows are tried where `most` suffice: whole tiles and part of one.

    They leave what `count` leaves of 8, as alignments of results depend on it.
    """
    rest = 24 + count % 8
    return min(count, max((most - rest) // 256, 1) * 256 + rest)


def first_rows(w: Rows, count: int) -> Rows:
    """Matrices with their first rows alone: where rows follow each other, matrices do then too."""
    element, row, b2, b3 = w.nb
    if element <= row:
        b2 = min(b2, row * count)
        b3 = min(b3, b2 * w.ne[2]) if b2 else b3
    return replace(w, ne=(w.ne[0], count, *w.ne[2:]), nb=(element, row, b2, b3))
