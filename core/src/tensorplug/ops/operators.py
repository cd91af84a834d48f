"""What Python's operators on tensors build; they follow NumPy where the builders follow ggml."""

import operator
from typing import Any

from tensorplug.errors import ShapeError
from tensorplug.ops import copy, elementwise, matmul, unary, view
from tensorplug.tensor import OPERATORS, Ne, Tensor


def _common(a: Tensor, b: Tensor, sign: str) -> tuple[Ne, int]:
    """Sizes that `a` and `b` broadcast to: equal, or 1 on either side."""
    if any(m != n and 1 not in (m, n) for m, n in zip(a.ne, b.ne, strict=True)):
        raise ShapeError(
            f"{sign}: shapes {list(a.shape)} and {list(b.shape)} do not broadcast; sizes must be "
            "equal or 1"
        )
    a_, b_, c, d = (n if m == 1 else m for m, n in zip(a.ne, b.ne, strict=True))
    return (a_, b_, c, d), max(a.rank, b.rank)


def _spread(x: Tensor, ne: Ne, rank: int) -> Tensor:
    return x if x.ne == ne else copy.repeat(x, ne[:rank][::-1])


def _add(a: Tensor, b: Tensor | float) -> Tensor:
    if not isinstance(b, Tensor):
        return elementwise.scale(a, 1.0, bias=b)
    ne, rank = _common(a, b, "+")
    # The sum is the same either way round; the side that has the full shape goes first.
    first, second = (b, a) if a.ne != ne and b.ne == ne and a.dtype is b.dtype else (a, b)
    return elementwise.add(_spread(first, ne, rank), second)


def _mul(a: Tensor, b: Tensor | float) -> Tensor:
    if not isinstance(b, Tensor):
        return elementwise.scale(a, b)
    ne, rank = _common(a, b, "*")
    first, second = (b, a) if a.ne != ne and b.ne == ne and a.dtype is b.dtype else (a, b)
    return elementwise.mul(_spread(first, ne, rank), second)


def _sub(a: Tensor, b: Tensor | float) -> Tensor:
    if not isinstance(b, Tensor):
        return elementwise.scale(a, 1.0, bias=-b)
    return elementwise.sub(_spread(a, *_common(a, b, "-")), b)


def _rsub(a: Tensor, b: float) -> Tensor:
    return elementwise.scale(a, -1.0, bias=b)


def _div(a: Tensor, b: Tensor | float) -> Tensor:
    if not isinstance(b, Tensor):
        return elementwise.scale(a, 1.0 / b)
    return elementwise.div(_spread(a, *_common(a, b, "/")), b)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`: `mul_mat(w, a)` where `b` is `w.T`; else `b` is transposed and copied first."""
    if b.rank == 1:
        return matmul.mul_mat(a, b)
    weight = b.operands[0] if b.op == "transpose" else None
    if weight is None:
        if b.dtype.is_block:
            raise ShapeError(
                f"@: {b} of block type {b.dtype.name} cannot be transposed; write `x @ w.T` with `w` "
                "stored as [outputs, inputs], or cast() it first"
            )
        weight = copy.cont(view.transpose(b))
    if any(m < n and m == 1 for m, n in zip(a.ne[2:], weight.ne[2:], strict=True)):
        ne = (a.ne[0], a.ne[1], max(a.ne[2], weight.ne[2]), max(a.ne[3], weight.ne[3]))
        a = _spread(a, ne, max(a.rank, weight.rank))
    return matmul.mul_mat(weight, a)


def _getitem(x: Tensor, index: Any) -> Tensor:
    """A view by integers, slices with positive steps, and `...`, NumPy order."""
    entries = _expand(x, index if isinstance(index, tuple) else (index,))
    offset, ne, nb = 0, [], []
    for dim, entry in zip(range(x.rank - 1, -1, -1), entries, strict=True):
        size, stride = x.ne[dim], x.nb[dim]
        block = x.dtype.block if dim == 0 else 1
        if not isinstance(entry, slice):
            start, count, step = _position(x, entry, size), 1, 1
        else:
            start, stop, step = entry.indices(size)
            if step < 1:
                raise ShapeError(f"{x}: a slice with step {step}; steps must be positive")
            count = max(0, -(-(stop - start) // step))
        if block > 1 and (start % block or count % block or step != 1):
            raise ShapeError(
                f"{x}: slice {entry} cuts blocks of {block} elements; start and length must be multiples"
            )
        offset += start // block * stride
        if isinstance(entry, slice):
            ne.append(count)
            nb.append(stride * step)
    if not ne:
        ne, nb = [1], [x.nb[0]]
    ne.reverse()
    nb.reverse()
    return _strided(x, ne, nb, offset)


def _strided(x: Tensor, ne: list[int], nb: list[int], offset: int) -> Tensor:
    padded = [*nb]
    while len(padded) < 4:
        padded.append(padded[-1] * max(ne[len(padded) - 1] if len(padded) <= len(ne) else 1, 1))
    sizes = (*ne, 1, 1, 1, 1)[:4]
    return view.strided(x, sizes, tuple(padded), rank=len(ne), offset=offset)


def _expand(x: Tensor, entries: tuple[Any, ...]) -> list[Any]:
    if entries.count(Ellipsis) > 1:
        raise ShapeError(f"{x}: more than one `...` in an index")
    if Ellipsis not in entries:
        entries = (*entries, Ellipsis)
    at = entries.index(Ellipsis)
    missing = x.rank - (len(entries) - 1)
    if missing < 0:
        raise ShapeError(f"{x}: {len(entries) - 1} indices for {x.rank} dimensions")
    return [*entries[:at], *[slice(None)] * missing, *entries[at + 1 :]]


def _position(x: Tensor, entry: Any, size: int) -> int:
    at = operator.index(entry)
    if not -size <= at < size:
        raise IndexError(f"{x}: index {at} is outside a dimension of {size}")
    return at % size


OPERATORS.update(
    {
        "transpose": view.transpose,
        "reshape": lambda x, shape: view.reshape(x, tuple(shape)),
        "getitem": _getitem,
        "matmul": _matmul,
        "add": _add,
        "sub": _sub,
        "rsub": _rsub,
        "mul": _mul,
        "div": _div,
        "neg": unary.neg,
    }
)
