"""Memory in which several ways to compute one node are tried: random operands, and results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.buffer import Buffer
from tensorplug.dtypes import BF16, MXFP4, Q8_K, DType
from tensorplug.errors import OutOfMemory
from tensorplug.tensor import Array, Tensor
from tensorplug_simt.merging import Placed
from tensorplug_simt.placing import ALIGNMENT
from tensorplug_simt.program import Program

if TYPE_CHECKING:
    from tensorplug_simt.device import SimtDevice

PERIOD = 65537
"""Elements or blocks after which operands repeat: a prime, so that no two rows are the same."""
PARTS, PART = 64, 2**16
"""So many parts of so many elements are compared of a result that is larger than all of them."""
HIDDEN = 0.5
"""The share of a mask that hides."""
UNWRITTEN = 0xFF
"""Byte of results before they are computed: floats of it are no numbers."""
SPARE = ALIGNMENT
"""Bytes behind each tensor, which nobody may write."""
EXPONENTS = {MXFP4: (0, 0x78), Q8_K: (3, 0x3C)}
"""Where a block has the exponent of its scale, and the lowest of four values that suit it."""

Drawing = Callable[[Tensor, np.random.Generator], Array]
"""Bytes of an operand, which repeat."""


@dataclass(frozen=True)
class Trials:
    """`memory` has a buffer for each tensor, and under None the scratch memory."""

    memory: Mapping[Tensor | None, Buffer]
    written: frozenset[Tensor | None]

    def placed(self, program: Program) -> list[Placed]:
        """The launches of a program, in this memory."""
        return [
            Placed(
                launch,
                tuple(self.memory[region.tensor] for region in launch.regions.values()),
                tuple(region.offset for region in launch.regions.values()),
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
        buffer, count = self.memory[node], node.nbytes // 4
        if count <= PARTS * PART:
            return buffer.read(0, node.nbytes).view(np.float32)
        starts = np.linspace(0, count - PART, PARTS).astype(int)
        parts = [buffer.read(4 * int(start), 4 * PART) for start in starts]
        return np.concatenate(parts).view(np.float32)


@contextmanager
def trials(
    device: "SimtDevice", programs: Mapping[str, Program], operand: Drawing, *, most: int
) -> Iterator[Trials]:
    """Memory for any of the programs, given back at the end; `operand` says what is in it.

    Raises OutOfMemory where it is more than `most` bytes, or than half of what is free.
    """
    sizes: dict[Tensor | None, int] = {None: max(p.scratch for p in programs.values())}
    written: set[Tensor | None] = {None}
    for launch in (launch for program in programs.values() for launch in program.launches):
        for name, region in launch.regions.items():
            end = region.offset + region.nbytes
            sizes[region.tensor] = max(sizes.get(region.tensor, 1), end)
            # Absent buffers are the first one, with nothing in it.
            if name in launch.kernel.writes and region.nbytes:
                written.add(region.tensor)
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
                _fill(buffer, operand(tensor, random))
        yield Trials(memory, frozenset(written))


def _fill(buffer: Buffer, pattern: Array) -> None:
    for start in range(0, buffer.size, pattern.size):
        buffer.write(start, pattern[: buffer.size - start])


def numbers(dtype: DType, random: np.random.Generator) -> Array:
    """Bytes of numbers around 0; blocks have scales below 2."""
    if dtype.is_block:
        # Without the highest bit of their exponents, scales are numbers below 2.
        blocks = random.integers(0, 256, (PERIOD, dtype.size), np.uint8) & np.uint8(0xBF)
        if dtype in EXPONENTS:
            place, lowest = EXPONENTS[dtype]
            blocks[:, place] = lowest + (blocks[:, place] & 3)
        return blocks.reshape(-1)
    values = random.standard_normal(PERIOD, np.float32)
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


def difference(found: Array, wanted: Array) -> float:
    """The normalised mean square error; infinite where a value is no number."""
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return float("inf")
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.sum((found - wanted) ** 2) / max(np.sum(wanted**2), np.finfo(float).tiny))
