"""What a lowering makes: `Program`, a list of `Launch`es of `Kernel`s on `Region`s of memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from tensorplug.device import Tensor, contiguous_nb
from tensorplug.dtypes import DType
from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import Ne

Number = int | float
Grid = tuple[int, int, int]

KINDS: Mapping[str, str] = MappingProxyType(
    {"int": "<i4", "uint": "<u4", "long": "<i8", "float": "<f4"}
)
"""Types of the numbers that a kernel may take, in its language and in NumPy's."""

REGION = np.dtype([("off", "<i8"), ("nb", "<i8", 4), ("ne", "<i4", 4)], align=True)
"""How a kernel sees a tensor: bytes to its first element, strides in bytes, sizes."""


@dataclass(frozen=True)
class Kernel:
    """A kernel text: the section `name` of the resource `text`, and what it is given.

    It is called with one pointer to bytes for each of `buffers`, then one block of parameters: a
    `region` for each buffer, under its name, then the `numbers` (name, kind of `KINDS`).
    `writes` names the buffers that it changes; `text` is `package:path`.
    """

    name: str
    text: str
    buffers: tuple[str, ...]
    writes: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    """Resources that others share: what they say for all kernels is put before the section."""
    reusable: bool = False
    """Whether the kernel is deterministic and does not read what it writes (safe to run twice)."""
    rounds_each_step: bool = False
    """Whether `a * b + c` must round twice: a pragma of the header says so, for CUDA an option."""

    @property
    def signature(self) -> str:
        """The kernel as people read it: `scale(x; float factor, uint count) -> y`."""
        read = ", ".join(name for name in self.buffers if name not in self.writes)
        numbers = ", ".join(f"{kind} {name}" for name, kind in self.numbers)
        taken = f"{read}; {numbers}" if numbers else read
        return f"{self.name}({taken}) -> {', '.join(self.writes)}"

    @property
    def file(self) -> str:
        """Where the text lies: `tensorplug_simt/kernels/norm.k`."""
        return self.text.replace(":", "/")

    @cached_property
    def parameters(self) -> "np.dtype[np.void]":
        """The layout of the parameter block."""
        fields = [(name, REGION) for name in self.buffers]
        numbers = [(name, np.dtype(KINDS[kind])) for name, kind in self.numbers]
        return np.dtype([*fields, *numbers], align=True)


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a kernel sees as a tensor: that of `tensor`, or scratch where there is none.

    `offset` is in bytes from the start of the tensor, or of the scratch memory.
    """

    tensor: Tensor | None
    dtype: DType
    ne: Ne
    nb: Ne
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element."""
        if 0 in self.ne:
            return 0
        (n0, n1, n2, n3), (b0, b1, b2, b3) = self.ne, self.nb
        block = self.dtype.is_block
        row = self.dtype.row_size(n0) if block else self.dtype.size + (n0 - 1) * b0
        return row + (n1 - 1) * b1 + (n2 - 1) * b2 + (n3 - 1) * b3

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest of its bytes and the end of the highest, counted from its first element.

        Elements lie before the first one where strides are negative.
        """
        if 0 in self.ne:
            return 0, 0
        if min(self.nb) >= 0:
            return 0, self.nbytes
        below = sum((n - 1) * b for n, b in zip(self.ne, self.nb, strict=True) if b < 0)
        return below, self.nbytes - below


def region(tensor: Tensor) -> Region:
    """A tensor as it is."""
    return Region(tensor, tensor.dtype, tensor.ne, tensor.nb)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel: `groups` groups of `local` work items.

    `types` are the element types that the text is compiled for, by the name of a buffer or another
    role; `defines` are further constants of the text. Sizes of tensors are never among them.
    """

    kernel: Kernel
    regions: Mapping[str, Region]
    numbers: Mapping[str, Number]
    groups: Grid
    local: Grid
    types: Mapping[str, DType]
    defines: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def variant(self) -> tuple[object, ...]:
        """What decides the compiled program: two launches with the same variant share it."""
        return (
            self.kernel.text,
            self.kernel.name,
            self.kernel.parts,
            tuple(sorted((role, t.name) for role, t in self.types.items())),
            tuple(sorted(self.defines.items())),
        )

    def parameters(self, offsets: Mapping[str, int]) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
        """The parameter block; `offsets` are bytes to the start of each region's buffer."""
        block = np.zeros(1, self.kernel.parameters)
        for name, seen in self.regions.items():
            block[name]["off"] = offsets[name]
            block[name]["nb"] = seen.nb
            block[name]["ne"] = seen.ne
        for name, number in self.numbers.items():
            block[name] = number
        return block


@dataclass(frozen=True, slots=True)
class Program:
    """The launches that compute a node or a group of nodes, in order; `scratch` is in bytes."""

    launches: tuple[Launch, ...]
    scratch: int = 0


def launch(
    kernel: Kernel,
    operands: Mapping[str, Tensor | Region],
    *,
    groups: Sequence[int],
    local: Sequence[int] = (1,),
    types: Mapping[str, DType] | None = None,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, Number] | None = None,
    **more: Number,
) -> Launch:
    """A launch of `kernel` on `operands`; absent buffers get the first one, with sizes of 0.

    Numbers come as keywords, or together as `numbers`.
    Raises ShapeError for numbers that are not the kernel's.
    """
    regions = {n: p if isinstance(p, Region) else region(p) for n, p in operands.items()}
    first = next(iter(regions.values()))
    absent = Region(first.tensor, first.dtype, (0, 0, 0, 0), (0, 0, 0, 0), first.offset)
    ordered = {name: regions.get(name, absent) for name in kernel.buffers}
    given = {**(numbers or {}), **more}
    named = {name for name, _ in kernel.numbers}
    if named != given.keys() or not regions.keys() <= set(kernel.buffers):
        raise ShapeError(
            f"kernel {kernel.name}: takes {sorted(named)} on {kernel.buffers}, got "
            f"{sorted(given)} on {sorted(regions)}"
        )
    used = {name: seen.dtype for name, seen in regions.items()}
    return Launch(
        kernel,
        ordered,
        given,
        _grid(groups),
        _grid(local),
        {**used, **(types or {})},
        dict(defines or {}),
    )


def _grid(sizes: Sequence[int]) -> Grid:
    x, y, z = (*sizes, 1, 1)[:3]
    return (max(x, 1), max(y, 1), max(z, 1))


def scratch(dtype: DType, ne: Ne, offset: int = 0) -> Region:
    """Scratch memory seen as a tensor, `offset` bytes into the scratch memory of the program."""
    return Region(None, dtype, ne, contiguous_nb(dtype, ne), offset)


def blocks_of(count: int, size: int) -> int:
    """How many parts of `size` cover `count`."""
    return -(-count // size)
