"""`Tensor`: frozen metadata of one value in a graph.

Sizes are available in two orders. `ne` and `nb` are in ggml order: four sizes and four strides in
bytes, the fastest dimension first. `shape` and `strides` are in NumPy order and have one entry for
each dimension of the tensor. Only persistent tensors (weights, caches) have a place of their own in
memory; other tensors get a place from the bindings of a schedule.
"""

import enum
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorplug.dtypes import DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import NotAllocated, ShapeError

if TYPE_CHECKING:
    from tensorplug.device.buffer import Buffer

MAX_RANK = 4
Ne = tuple[int, int, int, int]
Value = int | float | bool | str | None | tuple["Value", ...] | Callable[..., Any]
Array = npt.NDArray[Any]

_serials = itertools.count()
_NO_PARAMS: Mapping[str, Value] = MappingProxyType({})

OPERATORS: dict[str, Callable[..., "Tensor"]] = {}
"""Functions for the operators `+`, `@`, `[]` and others. `tensorplug.ops` fills this table, because
the module of tensors cannot import the ops."""


class Flags(enum.Flag):
    """Roles of a leaf tensor."""

    NONE = 0
    INPUT = enum.auto()
    """Written by the user before each run."""
    PARAM = enum.auto()
    """Trainable."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in memory: `offset` bytes into `buffer`.

    >>> with tp.open("cpu") as cpu:
    ...     cpu.place("w", np.ones(4, np.float32)).place.offset
    0
    """

    buffer: "Buffer"
    offset: int


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Tensor:
    """One value: a leaf (input, constant, weight) or the result of an op. Compared by identity.

    `operands` has one entry for each source of the op, None for an optional source that is absent.
    `view_of` is the tensor whose memory this tensor shares; it is never a view itself.
    `view_offset` is the offset into it, in bytes. With `writes`, computing this tensor writes into
    the memory of `view_of` and of the operands in `also_writes`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> y = x.T @ x + 1
    >>> y.shape, y.dtype.name, y.op
    ((3, 3), 'f32', 'scale')
    """

    dtype: DType
    ne: Ne
    nb: Ne
    rank: int
    op: str = "none"
    operands: tuple["Tensor | None", ...] = ()
    params: Mapping[str, Value] = field(default_factory=lambda: _NO_PARAMS)
    view_of: "Tensor | None" = None
    view_offset: int = 0
    writes: bool = False
    flags: Flags = Flags.NONE
    name: str = ""
    place: Place | None = None
    also_writes: tuple["Tensor", ...] = ()
    sources: tuple["Tensor", ...] = field(init=False)
    serial: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(t for t in self.operands if t is not None))
        object.__setattr__(self, "serial", next(_serials))

    # --- sizes -----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in NumPy order: slowest dimension first, `rank` of them."""
        return self.ne[: self.rank][::-1]

    @property
    def strides(self) -> tuple[int, ...]:
        """Byte strides in NumPy order; the last is the size of a block for block types."""
        return self.nb[: self.rank][::-1]

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def rows(self) -> int:
        """Number of rows of `ne[0]` elements."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from the start of the first to the end of the last element, including gaps."""
        if self.size == 0:
            return 0
        if self.splits_blocks:
            return self.sources[0].nbytes
        ne, nb, kind = self.ne, self.nb, self.dtype
        row = kind.row_size(ne[0]) if kind.is_block else kind.size + (ne[0] - 1) * nb[0]
        return row + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]

    @property
    def is_contiguous(self) -> bool:
        """True if elements are in order without gaps; dimensions of size 1 do not matter."""
        if self.size == 0:
            return True
        return not self.splits_blocks and all(
            n == 1 or b == want
            for n, b, want in zip(self.ne, self.nb, contiguous_nb(self.dtype, self.ne), strict=True)
        )

    @property
    def has_contiguous_rows(self) -> bool:
        """True if there are no gaps within rows."""
        return not self.splits_blocks and (self.nb[0] == self.dtype.size or self.ne[0] == 1)

    @property
    def splits_blocks(self) -> bool:
        """True for a transposed tensor of a block type, which only `x @ w.T` accepts.

        Its rows run across blocks, and strides cannot express that.
        """
        return self.dtype.is_block and self.op == "transpose"

    # --- roles -----------------------------------------------------------------------------

    @property
    def is_leaf(self) -> bool:
        """True if no op computes this tensor."""
        return self.op == "none"

    @property
    def is_view(self) -> bool:
        """True for a view: the tensor lies in the memory of another and needs no computation."""
        return self.view_of is not None and not self.writes

    @property
    def is_input(self) -> bool:
        """True if the user writes this tensor before each run."""
        return Flags.INPUT in self.flags

    @property
    def root(self) -> "Tensor":
        """The tensor that has the memory of this one: itself unless it is a view or a write."""
        return self if self.view_of is None else self.view_of

    @property
    def written_roots(self) -> tuple["Tensor", ...]:
        """The roots whose memory changes when this tensor is computed, except its own memory."""
        return (self.root, *(t.root for t in self.also_writes)) if self.writes else ()

    def same_layout(self, other: "Tensor") -> bool:
        """True if type, sizes and strides of both tensors are equal."""
        return self.dtype is other.dtype and self.ne == other.ne and self.nb == other.nb

    def named(self, name: str) -> "Tensor":
        """Return a copy with another name. The copy is a different tensor; use it instead.

        The copy has the position of this tensor in execution order.
        """
        copy = replace(self, name=name)
        object.__setattr__(copy, "serial", self.serial)
        return copy

    # --- data ------------------------------------------------------------------------------

    def numpy(self) -> Array:
        """Return the memory of this tensor as an array of `shape`, without a copy.

        Elements of bf16 are uint16. Block types are bytes, and the last size is bytes per row.
        Raises NotAllocated if the tensor has no memory or the host cannot read its memory.
        """
        home = self._home()
        return array_view(self, home.buffer.host(), home.offset + self.view_offset)

    def _shared(self) -> Any:
        """An array through which other libraries can access the memory; see `Buffer.shared`."""
        home = self._home()
        return home.buffer.shared(self, home.offset + self.view_offset)

    def _home(self) -> Place:
        home = self.root.place
        if home is None:
            raise NotAllocated(
                f"{self}: has no memory of its own; read it from the results of a run"
            )
        return home

    __array_ufunc__ = None  # so NumPy leaves `array + tensor` to Tensor and reads no memory

    def __array__(self, dtype: "np.dtype[Any] | None" = None, *, copy: bool | None = None) -> Array:
        array = self.numpy()
        return np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._shared().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        place: tuple[int, int] = self._shared().__dlpack_device__()
        return place

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.numpy().data

    # --- operators -------------------------------------------------------------------------

    @property
    def T(self) -> "Tensor":  # noqa: N802 - NumPy's spelling
        """A view of a matrix with its two dimensions swapped. Raises ShapeError for other ranks."""
        if self.rank != 2:
            raise ShapeError(
                f"{self}: .T needs two dimensions, got {self.rank}; .mT swaps the last two, "
                "permute() reorders all, reshape() adds dimensions"
            )
        return self.mT

    @property
    def mT(self) -> "Tensor":  # noqa: N802 - NumPy's spelling
        """A view with the last two dimensions swapped. Raises ShapeError for fewer than two."""
        if self.rank < 2:
            raise ShapeError(
                f"{self}: .mT swaps the last two dimensions, got {self.rank}; reshape() adds "
                "dimensions"
            )
        return OPERATORS["transpose"](self)

    def reshape(self, *shape: int | tuple[int, ...]) -> "Tensor":
        """A view with other sizes in NumPy order; one may be -1 (inferred).

        Raises ShapeError if this tensor is not contiguous or the number of elements differs.
        """
        return OPERATORS["reshape"](self, shape)

    def __getitem__(self, index: Any) -> "Tensor":
        return OPERATORS["getitem"](self, index)

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return OPERATORS["matmul"](self, other)

    def __add__(self, other: "Tensor | float") -> "Tensor":
        return OPERATORS["add"](self, other)

    def __radd__(self, other: float) -> "Tensor":
        return OPERATORS["add"](self, other)

    def __sub__(self, other: "Tensor | float") -> "Tensor":
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: float) -> "Tensor":
        return OPERATORS["rsub"](self, other)

    def __mul__(self, other: "Tensor | float") -> "Tensor":
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: float) -> "Tensor":
        return OPERATORS["mul"](self, other)

    def __truediv__(self, other: "Tensor | float") -> "Tensor":
        return OPERATORS["div"](self, other)

    def __rtruediv__(self, other: float) -> "Tensor":
        return OPERATORS["rdiv"](self, other)

    def __pow__(self, exponent: float) -> "Tensor":
        return OPERATORS["pow"](self, exponent)

    def __rpow__(self, base: float) -> "Tensor":
        return OPERATORS["rpow"](self, base)

    def __abs__(self) -> "Tensor":
        return OPERATORS["abs"](self)

    def __neg__(self) -> "Tensor":
        return OPERATORS["neg"](self)

    def __len__(self) -> int:
        if self.rank == 0:
            raise TypeError(f"{self}: a scalar has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(f"{self}: is neither true nor false; compare with None, or read its data")

    @property
    def label(self) -> str:
        """What texts call it: its name, or its op and number: `mul_mat #7`, `leaf #3`."""
        return self.name or f"{'leaf' if self.is_leaf else self.op} #{self.serial}"

    def __repr__(self) -> str:
        label = f"{self.name!r}, {self.op}" if self.name else self.label
        return f"<Tensor {label}, {self.dtype.name}{list(self.shape)}>"


def contiguous_nb(dtype: DType, ne: Ne) -> Ne:
    """Strides in bytes of a contiguous tensor. Raises ShapeError if a row ends within a block."""
    row = dtype.row_size(ne[0])
    return (dtype.size, row, row * ne[1], row * ne[1] * ne[2])


def pad_ne(sizes: tuple[int, ...]) -> Ne:
    """Fill `sizes` (ggml order) with ones up to four. Raises ShapeError for more."""
    if len(sizes) > MAX_RANK:
        raise ShapeError(f"{len(sizes)} dimensions {sizes}; at most {MAX_RANK} are possible")
    a, b, c, d = (*sizes, 1, 1, 1, 1)[:MAX_RANK]
    return (a, b, c, d)


def sizes_of(shape: Iterable[int], where: str) -> tuple[int, ...]:
    """`shape` as a tuple. Raises ShapeError for one number."""
    try:
        return tuple(shape)
    except TypeError as error:
        raise ShapeError(
            f"{where}: shape {shape!r}; give a tuple of sizes, such as (3,)"
        ) from error


def ne_of(shape: tuple[int, ...] | list[int], where: str) -> tuple[Ne, int]:
    """Turn a NumPy-order shape into (`ne`, rank). Raises ShapeError."""
    shape = sizes_of(shape, where)
    if len(shape) > MAX_RANK:
        raise ShapeError(
            f"{where}: {len(shape)} dimensions {shape}; at most {MAX_RANK} are possible"
        )
    try:
        ne = tuple(operator.index(n) for n in reversed(shape))
    except TypeError as error:
        raise ShapeError(
            f"{where}: shape {shape}; sizes are integers, and a graph is made for one shape"
        ) from error
    if any(n < 0 for n in ne):
        raise ShapeError(f"{where}: negative size in shape {shape}")
    return pad_ne(ne), len(shape)


def leaf(
    name: str,
    shape: tuple[int, ...] | list[int],
    dtype: DTypeLike,
    *,
    flags: Flags = Flags.NONE,
    place: Place | None = None,
) -> Tensor:
    """Return a contiguous tensor that no op computes; `shape` is in NumPy order."""
    ne, rank = ne_of(shape, f"tensor {name!r}")
    kind = dtype_of(dtype)
    return Tensor(kind, ne, contiguous_nb(kind, ne), rank, flags=flags, name=name, place=place)


def input(name: str, shape: tuple[int, ...] | list[int], dtype: DTypeLike) -> Tensor:
    """Return a tensor that the user gives to each run; `shape` is in NumPy order.

    >>> tp.input("x", (2, 3), tp.F32)
    <Tensor 'x', none, f32[2, 3]>
    """
    return leaf(name, shape, dtype, flags=Flags.INPUT)


def array_view(tensor: Tensor, memory: Array, offset: int) -> Array:
    """Return `tensor`, which lies at `offset` of the uint8 array `memory`, as an array; no copy.

    The shape is `Tensor.shape`; the last dimension of block types counts bytes. Raises ShapeError
    if the tensor does not lie in `memory`.
    """
    if tensor.splits_blocks:
        raise ShapeError(
            f"{tensor}: is a transposed block type, whose elements have no addresses; "
            f"use {tensor.sources[0]}"
        )
    end = offset + tensor.nbytes
    if offset < 0 or end > memory.size:
        raise ShapeError(
            f"{tensor}: needs bytes {offset} to {end} of a buffer of {memory.size} bytes"
        )
    if not tensor.dtype.is_block:
        shape, strides, kind = tensor.shape, tensor.strides, tensor.dtype.storage
    else:
        row = tensor.dtype.row_size(tensor.ne[0])
        shape = (*tensor.shape[:-1], row)
        strides = (*tensor.strides[:-1], 1)
        kind = np.dtype(np.uint8)
    window = memory[offset:end]
    return np.ndarray(shape, kind, window, 0, strides)
