"""Python's operators on tensors. They follow NumPy's rules; the functions of ops follow ggml's."""

import math
import numbers
import operator
from typing import Any

from tensorplug.dtypes import BF16, F16, F32, DType
from tensorplug.errors import DTypeError, OptionError, ShapeError
from tensorplug.graph.tensor import OPERATORS, Ne, Tensor
from tensorplug.ops import copy, elementwise, matmul, unary, view

# --- arithmetic --------------------------------------------------------------------------------


def _common(a: Tensor, b: Tensor, sign: str) -> tuple[Ne, int]:
    """The sizes and rank that `a` and `b` broadcast to. Raises ShapeError."""
    if any(m != n and 1 not in (m, n) for m, n in zip(a.ne, b.ne, strict=True)):
        raise ShapeError(
            f"{sign}: shapes {list(a.shape)} and {list(b.shape)} do not broadcast; sizes must be "
            "equal or 1"
        )
    c, d, e, f = (n if m == 1 else m for m, n in zip(a.ne, b.ne, strict=True))
    return (c, d, e, f), max(a.rank, b.rank)


def _spread(x: Tensor, ne: Ne, rank: int) -> Tensor:
    """`x` repeated to sizes `ne`, with `rank` dimensions; `x` itself if it has both already."""
    if x.ne != ne:
        return copy.repeat(x, ne[:rank][::-1])
    return x if x.rank == rank else view.view_ne(x, x.ne, x.nb, rank=rank, offset=0)


def _promoted(a: DType, b: DType) -> DType:
    """The type of a sum by NumPy's rule: the wider type, and f32 for f16 with bf16."""
    return F32 if a is not b and {a, b} <= {F32, F16, BF16} else a


def _pair(a: Tensor, b: Tensor, sign: str) -> tuple[Tensor, Tensor]:
    """`a` in the shape and type of the result, and `b`, which broadcasts to it."""
    ne, rank = _common(a, b, sign)
    to = _promoted(a.dtype, b.dtype)
    return _spread(a if a.dtype is to else copy.cast(a, to), ne, rank), b


def _commuted(a: Tensor, b: Tensor, sign: str) -> tuple[Tensor, Tensor]:
    """As `_pair`, but the side that already has the shape and type of the result comes first."""
    ne, rank = _common(a, b, sign)
    wanted = (ne, rank, _promoted(a.dtype, b.dtype))
    if (a.ne, a.rank, a.dtype) != wanted and (b.ne, b.rank, b.dtype) == wanted:
        return b, a
    return _pair(a, b, sign)


def _number(value: Any, sign: str) -> float:
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(
        f"{sign}: takes tensors and numbers, got {type(value).__name__}; place() data first"
    )


def _add(a: Tensor, b: Any) -> Tensor:
    if isinstance(b, Tensor):
        return elementwise.add(*_commuted(a, b, "+"))
    return elementwise.scale(a, 1.0, bias=_number(b, "+"))


def _mul(a: Tensor, b: Any) -> Tensor:
    if isinstance(b, Tensor):
        return elementwise.mul(*_commuted(a, b, "*"))
    return elementwise.scale(a, _number(b, "*"))


def _sub(a: Tensor, b: Any) -> Tensor:
    if isinstance(b, Tensor):
        return elementwise.sub(*_pair(a, b, "-"))
    return elementwise.scale(a, 1.0, bias=-_number(b, "-"))


def _rsub(a: Tensor, b: Any) -> Tensor:
    return elementwise.scale(a, -1.0, bias=_number(b, "-"))


def _div(a: Tensor, b: Any) -> Tensor:
    if isinstance(b, Tensor):
        return elementwise.div(*_pair(a, b, "/"))
    divisor = _number(b, "/")
    return elementwise.scale(a, 1.0 / divisor if divisor else math.copysign(math.inf, divisor))


def _rdiv(a: Tensor, b: Any) -> Tensor:
    number = _number(b, "/")
    if a.dtype not in (BF16, F16, F32):
        raise DTypeError(f"/: {a} has type {a.dtype.name}; {b!r} / x takes bf16, f16, f32")
    return elementwise.div(elementwise.fill(a, number), a)


def _pow(x: Tensor, exponent: Any) -> Tensor:
    """`x` to a whole power up to MOST, by products as NumPy computes it, or to the power 0.5."""
    if isinstance(exponent, Tensor):
        return _rpow(exponent, x)
    power = _number(exponent, "**")
    if power < 0:
        return _rdiv(_pow(x, -power), 1.0)
    if power == 0.5:
        return unary.sqrt(x)
    if not power.is_integer() or power > MOST:
        raise OptionError(
            f"**: exponent {exponent!r}; takes 0.5 and whole numbers from -{MOST} to {MOST}; for "
            "x > 0, exp(log(x) * exponent) takes any"
        )
    return _power(x, int(power))


def _rpow(exponent: Tensor, base: Any) -> Tensor:
    raise TypeError(
        f"**: {base} to the power of {exponent}; takes numbers as exponents; for a base > 0, "
        "exp(log(base) * exponent) takes tensors"
    )


MOST = 64
"""The largest exponent of `**`."""


def _power(x: Tensor, power: int) -> Tensor:
    if power == 0:
        return elementwise.fill(x, 1.0)
    if power == 1:
        return x
    square = unary.sqr(_power(x, power // 2))
    return elementwise.mul(square, x) if power % 2 else square


# --- matrix products ---------------------------------------------------------------------------


def _matmul(a: Tensor, b: Any) -> Tensor:
    """`a @ b`: `mul_mat(w, a)` where `b` is `w.T`; else `b` is transposed and copied first."""
    if not isinstance(b, Tensor):
        raise TypeError(f"@: takes tensors, got {type(b).__name__}; place() data first")
    if not a.rank or not b.rank or a.ne[0] != b.ne[min(b.rank, 2) - 1]:
        raise ShapeError(
            f"@: shapes {list(a.shape)} and {list(b.shape)} do not match; the last size of the "
            "left side must equal the second to last size of the right side"
        )
    if b.rank == 1:
        return _times_vector(a, b)
    product = _times_rows(a, _rows_of(b))
    return product if a.rank > 1 else view.reshape(product, (*b.shape[:-2], b.shape[-1]))


def _times_vector(a: Tensor, b: Tensor) -> Tensor:
    # Weights of a block type can only be on the left of mul_mat.
    product = matmul.mul_mat(_packed(a), b) if a.rank == 2 else matmul.mul_mat(_packed(b), a)
    return view.reshape(product, a.shape[:-1])


def _rows_of(b: Tensor) -> Tensor:
    """The tensor whose rows are the columns of `b`."""
    if b.op == "transpose":
        return _packed(b.sources[0])
    if b.dtype.is_block:
        raise ShapeError(
            f"@: {b} of block type {b.dtype.name} cannot be transposed; write `x @ w.T` with `w` "
            "stored as [outputs, inputs], or cast() it first"
        )
    return copy.cont(view.transpose(b))


def _packed(x: Tensor) -> Tensor:
    return x if x.has_contiguous_rows else copy.cont(x)


def _times_rows(a: Tensor, w: Tensor) -> Tensor:
    """`mul_mat(w, a)`; the dimensions before the last two broadcast by NumPy's rules."""
    pairs = list(zip(a.ne[2:], w.ne[2:], strict=True))
    if any(m != n and 1 not in (m, n) for m, n in pairs):
        raise ShapeError(
            f"@: batches {list(a.shape[:-2])} and {list(w.shape[:-2])} do not broadcast; sizes "
            "must be equal or 1"
        )
    c, d = (n if m == 1 else m for m, n in pairs)
    ne = (a.ne[0], a.ne[1], c, d)
    # mul_mat repeats `w` over the batches of `a`, but not `a` over the batches of `w`.
    spread = a if a.ne == ne else _spread(a, ne, max(a.rank, w.rank))
    return matmul.mul_mat(w, spread)


# --- indexing ----------------------------------------------------------------------------------


def _getitem(x: Tensor, index: Any) -> Tensor:
    """A view by integers, slices with positive steps and `...`, in NumPy order."""
    entries = _expand(x, index if isinstance(index, tuple) else (index,))
    offset = 0
    ne: list[int] = []
    nb: list[int] = []
    for dim, entry in zip(range(x.rank - 1, -1, -1), entries, strict=True):
        block = x.dtype.block if dim == 0 else 1
        start, count, step = _range(x, entry, x.ne[dim])
        if block > 1 and (start % block or count % block or step != 1):
            raise ShapeError(
                f"{x}: index {entry} cuts blocks of {block} elements; start and length must be "
                "multiples"
            )
        offset += start // block * x.nb[dim]
        if isinstance(entry, slice):
            ne.insert(0, count)
            nb.insert(0, x.nb[dim] * step)
    # An empty view could start behind the end of `x`. It has no bytes, so it starts at the start.
    return view.view_ne(x, tuple(ne), tuple(nb), rank=len(ne), offset=0 if 0 in ne else offset)


def _expand(x: Tensor, entries: tuple[Any, ...]) -> list[Any]:
    gaps = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(gaps) > 1:
        raise ShapeError(f"{x}: more than one `...` in an index")
    at = gaps[0] if gaps else len(entries)
    given = [entry for entry in entries if entry is not Ellipsis]
    missing = x.rank - len(given)
    if missing < 0:
        raise ShapeError(f"{x}: {len(given)} indices for {x.rank} dimensions")
    return [*given[:at], *[slice(None)] * missing, *given[at:]]


def _range(x: Tensor, entry: Any, size: int) -> tuple[int, int, int]:
    """First position, count and step of one entry of an index."""
    if isinstance(entry, slice):
        start, stop, step = entry.indices(size)
        if step < 1:
            raise ShapeError(f"{x}: a slice with step {step}; steps must be positive")
        return start, len(range(start, stop, step)), step
    if isinstance(entry, bool) or not hasattr(entry, "__index__"):
        raise TypeError(
            f"{x}: index of type {type(entry).__name__}; takes integers, slices and `...`; "
            "get_rows() takes rows by a tensor of ids"
        )
    at = operator.index(entry)
    if not -size <= at < size:
        raise IndexError(f"{x}: index {at} is outside a dimension of {size}")
    return at % size, 1, 1


def _reshape(x: Tensor, sizes: tuple[Any, ...]) -> Tensor:
    shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    return view.reshape(x, tuple(shape))


OPERATORS.update(
    {
        "transpose": view.transpose,
        "reshape": _reshape,
        "getitem": _getitem,
        "matmul": _matmul,
        "add": _add,
        "sub": _sub,
        "rsub": _rsub,
        "mul": _mul,
        "div": _div,
        "rdiv": _rdiv,
        "pow": _pow,
        "rpow": _rpow,
        "neg": unary.neg,
        "abs": unary.abs,
    }
)
