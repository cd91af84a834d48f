"""`Partition`: how a tensor is distributed over devices."""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from tensorplug.errors import OptionError
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.split import AXES, MIRRORED, PARTIAL, Axis

MOST_DEVICES = 16


@dataclass(frozen=True, slots=True)
class Partition:
    """What each device has of a tensor: all of it (mirrored), a slice along `axis`, or a summand.

    `axis` is MIRRORED, PARTIAL (summands) or a dimension in ggml order. `sizes` are elements along
    the axis: one row for each segment, one column for each device. A fused tensor, such as a QKV
    matrix, has one segment for each of its tensors; a device's slice contains a part of every
    segment, in order.
    """

    axis: Axis
    sizes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        cut = isinstance(self.axis, int)
        if (cut and self.axis not in AXES) or cut != bool(self.sizes):
            raise OptionError(
                f"Partition: axis {self.axis!r} with {len(self.sizes)} segments; an axis from 0 "
                "to 3 has at least one, mirrored and partial have none"
            )
        widths = {len(row) for row in self.sizes}
        if len(widths) > 1 or any(n < 0 for row in self.sizes for n in row):
            raise OptionError(
                f"Partition: sizes {self.sizes}; each segment has one size, not negative, for "
                "each device"
            )

    @property
    def is_cut(self) -> bool:
        """True if each device has a slice along a dimension."""
        return isinstance(self.axis, int)

    @property
    def axis_name(self) -> str:
        """`axis 0`, `mirrored` or `partial`."""
        return f"axis {self.axis}" if self.is_cut else repr(self.axis)

    @property
    def length(self) -> int:
        """Elements of the whole tensor along the axis."""
        return sum(map(sum, self.sizes))

    def size(self, device: int) -> int:
        """Elements of one device's slice along the axis."""
        return sum(row[device] for row in self.sizes)

    def pieces(self, device: int) -> tuple[tuple[int, int], ...]:
        """The ranges (start, size) along the axis of the whole that form one device's slice."""
        edges = [0, *itertools.accumulate(n for row in self.sizes for n in row)]
        width = len(self.sizes[0])
        found = [
            (edges[i * width + device], row[device])
            for i, row in enumerate(self.sizes)
            if row[device]
        ]
        return tuple(found)

    def scaled(self, axis: int, length: int) -> "Partition | None":
        """The same proportions and segments along another axis with `length` elements.

        None if a size would not be an integer.
        """
        mine = self.length
        if not mine or any(n * length % mine for row in self.sizes for n in row):
            return None
        return Partition(axis, tuple(tuple(n * length // mine for n in r) for r in self.sizes))

    def within(self, start: int, stop: int) -> "tuple[Partition, tuple[int, ...]] | None":
        """The state of the range `start` to `stop`, and where it begins in each device's slice.

        None unless the range consists of whole segments.
        """
        edges = [0, *itertools.accumulate(sum(row) for row in self.sizes)]
        if start not in edges or stop not in edges or start >= stop:
            return None
        before = self.sizes[: edges.index(start)]
        rows = self.sizes[len(before) : edges.index(stop)]
        begins = tuple(sum(row[d] for row in before) for d in range(len(self.sizes[0])))
        return Partition(self.axis, rows), begins

    def check(self, tensor: Tensor, devices: int) -> None:
        """Raise OptionError unless `tensor` can be stored in this state on `devices` devices."""
        if self.axis is MIRRORED:
            return
        if self.axis is PARTIAL or not isinstance(self.axis, int):
            raise OptionError(f"{tensor}: cannot be stored as summands; cut or mirror it")
        if len(self.sizes[0]) != devices or self.length != tensor.ne[self.axis]:
            raise OptionError(
                f"{tensor}: {self} does not cut dimension {self.axis}, of {tensor.ne[self.axis]} "
                f"elements, over {devices} devices; deal() cuts a size by ratio"
            )
        if not self.fits(tensor):
            raise OptionError(
                f"{tensor}: {self} cuts blocks of {tensor.dtype.block} elements; use "
                f"deal(..., unit={tensor.dtype.block})"
            )

    def fits(self, tensor: Tensor) -> bool:
        """True if every size is a multiple of the block length of `tensor` along the axis."""
        block = tensor.dtype.block if self.axis == 0 else 1
        return all(n % block == 0 for row in self.sizes for n in row)

    def __str__(self) -> str:
        if not self.is_cut:
            return self.axis_name
        groups = [(row, len(list(same))) for row, same in itertools.groupby(self.sizes)]
        rows = ["+".join(map(str, row)) + (f" x{n}" if n > 1 else "") for row, n in groups]
        return f"{self.axis_name}: {', '.join(rows)}"


WHOLE = Partition(MIRRORED)
SUMMANDS = Partition(PARTIAL)


def cut(axis: int, *segments: Sequence[int], repeat: int = 1) -> Partition:
    """The state of a tensor cut along `axis` (ggml order).

    Each of `segments` gives the elements of each device in one segment. The list of segments is
    repeated `repeat` times. Raises OptionError.
    """
    rows = tuple(tuple(operator.index(n) for n in row) for row in segments)
    return Partition(axis, rows * repeat)


def deal(size: int, ratio: Sequence[float], *, unit: int = 1) -> tuple[int, ...]:
    """Divide `size` elements in the proportions of `ratio`, at multiples of `unit`.

    Returns one size for each entry of `ratio`; the sizes add up to `size`. Raises OptionError if
    `size` is not a multiple of `unit`, and for an invalid ratio.
    """
    whole = sum(ratio)
    if not ratio or any(part < 0 for part in ratio) or not (whole and math.isfinite(whole)):
        raise OptionError(
            f"deal: ratio {tuple(ratio)}; give a part, finite and not negative, for each device"
        )
    if unit < 1 or size % unit:
        raise OptionError(f"deal: {size} elements are not a multiple of the unit {unit}")
    units = size // unit
    edges = [round(units * sum(ratio[:i]) / whole) * unit for i in range(len(ratio) + 1)]
    return tuple(b - a for a, b in itertools.pairwise(edges))
