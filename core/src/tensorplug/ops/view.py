"""Views: tensors that lie in the memory of another tensor and need no computation."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence

from tensorplug.dtypes import DType
from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import (
    MAX_RANK,
    Ne,
    Tensor,
    Value,
    contiguous_nb,
    ne_of,
    pad_ne,
    sizes_of,
)
from tensorplug.ops.axes import moves_of
from tensorplug.ops.rules import ANY, contiguous, same_type_as
from tensorplug.ops.split import AXES, PARTIAL, Shard, Way, resized, ways
from tensorplug.ops.table import Alias, Call, Op, Param, Shape, Source, apply, register_op


def _four(value: Value) -> Ne:
    assert isinstance(value, tuple)
    whole = [n for n in value if isinstance(n, int)]
    if len(value) != MAX_RANK or len(whole) != MAX_RANK:
        raise ShapeError(f"view: takes {MAX_RANK} integer sizes, strides or axes, got {value}")
    a, b, c, d = whole
    return (a, b, c, d)


def _param_shape(call: Call) -> Shape:
    return _four(call.params["ne"]), call.int("rank")


def _reshaped(call: Call) -> Alias:
    x, ne = call["x"], _four(call.params["ne"])
    if math.prod(ne) != x.size:
        raise call.fail(f"{x.size} elements do not fill sizes {ne}")
    return Alias(x, 0, contiguous_nb(x.dtype, ne))


def _reshaped_parts(call: Call) -> Iterable[Way]:
    """Ways to cut dimensions that end where a dimension of the result ends.

    Only there a slice of the source is a slice of the result.
    """
    before, after = call["x"].ne, _four(call.params["ne"])
    yield Way({"x": PARTIAL}, PARTIAL)
    for axis in AXES:
        for to in AXES:
            same = math.prod(before[: axis + 1]) == math.prod(after[: to + 1])
            if before[axis] > 1 and after[to] > 1 and same:
                yield Way({"x": axis}, to)


RESHAPE = register_op(
    Op(
        "reshape",
        sources=(Source("x", ANY),),
        params=(Param("ne", tuple, required=True), Param("rank", int, required=True)),
        shape=_param_shape,
        dtype=same_type_as("x"),
        check=(contiguous("x"),),
        alias=_reshaped,
        split=_reshaped_parts,
        formula="y = the memory of x with other sizes",
    )
)


def _window(call: Call) -> Alias:
    x, ne, nb = call["x"], _four(call.params["ne"]), _four(call.params["nb"])
    offset = call.int("offset")
    check_window(call, x, ne, nb, offset)
    return Alias(x, offset, nb)


def check_window(call: Call, x: Tensor, ne: Ne, nb: Ne, offset: int) -> None:
    """Raise ShapeError if a window of sizes `ne` and strides `nb` leaves the elements of `x`."""
    unit = x.dtype.size
    if min(ne) < 0 or min(nb) < 0 or offset < 0:
        raise call.fail(f"sizes {ne}, strides {nb} and offset {offset} must not be negative")
    if x.dtype.is_block and nb[0] != unit:
        raise call.fail(f"rows of {x.dtype.name} hold blocks of {unit} bytes, not {nb[0]}")
    if offset % unit or any(n > 1 and step % unit for n, step in zip(ne, nb, strict=True)):
        raise call.fail(f"strides {nb} and offset {offset} must be multiples of {unit} bytes")
    end = offset + _reach(x.dtype, ne, nb)
    if end > x.nbytes:
        raise call.fail(f"the view covers bytes {offset} to {end} of {x.nbytes}")


def _reach(dtype: DType, ne: Ne, nb: Ne) -> int:
    """Bytes from the first to the last element."""
    row = dtype.row_size(ne[0]) if dtype.is_block else dtype.size + (ne[0] - 1) * nb[0]
    rest = sum((n - 1) * step for n, step in zip(ne[1:], nb[1:], strict=True))
    return 0 if 0 in ne else row + rest


def _window_parts(call: Call) -> Iterable[Way]:
    """Ways to cut dimensions of `x` along which exactly one dimension of the window moves."""
    yield Way({"x": PARTIAL}, PARTIAL)
    x = call["x"]
    if x.is_contiguous and not x.splits_blocks:
        for axis in AXES:
            way = _window_way(call, axis) if x.ne[axis] > 1 else None
            if way is not None:
                yield way


def _window_way(call: Call, axis: int) -> Way | None:
    x, ne, nb = call["x"], _four(call.params["ne"]), _four(call.params["nb"])
    per, unit, period = _along(x, axis)
    counts = (-(-ne[0] // x.dtype.block), *ne[1:])
    moving = [i for i in AXES if counts[i] > 1 and nb[i] % period]
    to = max(moving, key=lambda i: nb[i], default=None)
    if to is None or nb[to] % unit:
        return None
    step, inside = nb[to], call.int("offset") % period
    extent = x.dtype.size + sum((counts[i] - 1) * nb[i] for i in moving if i != to)
    first = inside // step * (step // unit) * per
    last = first + counts[to] * (step // unit) * per
    if inside % step + extent > step or last > x.ne[axis]:
        return None
    return Way({"x": axis}, to, (first, last))


def _along(x: Tensor, axis: int) -> tuple[int, int, int]:
    """Elements per block along `axis` of `x`, the bytes of one block, and of the whole axis."""
    per = x.dtype.block if axis == 0 else 1
    return per, x.nb[axis], x.nb[axis] * (x.ne[axis] // per)


def _window_shard(call: Call, shard: Shard) -> Mapping[str, Value]:
    """Shrink strides and the offset by as much as the cut dimension shrinks."""
    axis, local = shard.way.sources["x"], shard.operands[0]
    if not isinstance(axis, int) or local is None:
        return call.params
    per, unit, period = _along(call["x"], axis)
    mine = _along(local, axis)[2]
    outer, inside = divmod(call.int("offset"), period)
    rest = inside - shard.way.within[0] // per * unit if shard.way.within else inside
    nb = tuple(n // period * mine if n % period == 0 else n for n in _four(call.params["nb"]))
    offset = outer * mine + shard.begin // per * unit + rest
    return {**resized(call, shard), "nb": nb, "offset": offset}


VIEW = register_op(
    Op(
        "view",
        sources=(Source("x", ANY),),
        params=(
            Param("ne", tuple, required=True),
            Param("rank", int, required=True),
            Param("nb", tuple, required=True),
            Param("offset", int, default=0),
        ),
        shape=_param_shape,
        dtype=same_type_as("x"),
        alias=_window,
        split=_window_parts,
        shard=_window_shard,
        formula="y = the memory of x from offset on, with other sizes and strides",
    )
)


def _order(call: Call) -> Ne:
    axes = _four(call.params["axes"])
    if sorted(axes) != [0, 1, 2, 3]:
        raise call.fail(f"axes {axes} are not a permutation of 0, 1, 2, 3")
    if call["x"].dtype.is_block and axes[0] != 0:
        raise call.fail(
            f"rows of {call['x'].dtype.name} hold blocks and cannot be permuted; cast() x first"
        )
    return axes


def _moved(sizes: Ne, axes: Ne) -> Ne:
    moved = [0, 0, 0, 0]
    for size, axis in zip(sizes, axes, strict=True):
        moved[axis] = size
    return (moved[0], moved[1], moved[2], moved[3])


def _permuted_shape(call: Call) -> Shape:
    x, axes = call["x"], _order(call)
    rank = max([axes[i] + 1 for i in range(x.rank)], default=0)
    return _moved(x.ne, axes), rank


def _permuted_parts(call: Call) -> Iterable[Way]:
    yield Way({"x": PARTIAL}, PARTIAL)
    yield from (Way({"x": axis}, to) for axis, to in enumerate(_order(call)))


PERMUTE = register_op(
    Op(
        "permute",
        sources=(Source("x", ANY),),
        params=(Param("axes", tuple, required=True),),
        shape=_permuted_shape,
        dtype=same_type_as("x"),
        alias=lambda call: Alias(call["x"], 0, _moved(call["x"].nb, _order(call))),
        split=_permuted_parts,
        formula="y = x with dimension i moved to axes[i] (ggml order)",
    )
)


def _swapped_shape(call: Call) -> Shape:
    x = call["x"]
    return (x.ne[1], x.ne[0], x.ne[2], x.ne[3]), max(x.rank, 2)


def _swapped(call: Call) -> Alias:
    x = call["x"]
    # A transposed block type has no meaningful strides; see Tensor.splits_blocks.
    return Alias(x, 0, (x.nb[1], x.nb[0], x.nb[2], x.nb[3]))


TRANSPOSE = register_op(
    Op(
        "transpose",
        sources=(Source("x", ANY),),
        shape=_swapped_shape,
        dtype=same_type_as("x"),
        alias=_swapped,
        split=ways(
            Way({"x": PARTIAL}, PARTIAL),
            *(Way({"x": axis}, to) for axis, to in enumerate((1, 0, 2, 3))),
        ),
        formula="y = x with dimensions 0 and 1 swapped",
    )
)


def reshape(x: Tensor, shape: tuple[int, ...], *, name: str = "") -> Tensor:
    """A view of contiguous `x` with other sizes in NumPy order; one size may be -1 (inferred).

    >>> x = tp.input("x", (2, 6), tp.F32)
    >>> tp.reshape(x, (3, -1)).shape
    (3, 4)
    """
    shape = sizes_of(shape, "reshape")
    if shape.count(-1) > 1:
        raise ShapeError(f"reshape: {shape} has more than one size -1")
    known = math.prod(n for n in shape if n >= 0)
    if -1 in shape and min(shape) == -1:
        if not known or x.size % known:
            raise ShapeError(f"reshape: {x.size} elements of {x} do not fill {shape}")
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    ne, rank = ne_of(shape, "reshape")
    return apply(RESHAPE, x, ne=ne, rank=rank, name=name)


def view(
    x: Tensor,
    shape: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    name: str = "",
) -> Tensor:
    """A view into the memory of `x`, like NumPy's `as_strided`: `strides` and `offset` in bytes.

    There is one stride for each axis; by default they are the strides of the last axes of `x`.
    Raises ShapeError if the view would reach outside `x`.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> tp.view(x, (2, 6), offset=24).shape  # rows 1 and 2
    (2, 6)
    """
    ne, rank = ne_of(tuple(shape), "view")
    nb = x.nb[:rank] if strides is None else nb_of(strides, rank, "view")
    return view_ne(x, ne[:rank], nb, rank=rank, offset=offset, name=name)


def nb_of(strides: Sequence[int], rank: int, where: str) -> tuple[int, ...]:
    """`strides` in ggml's order. Raises ShapeError unless there is one for each of `rank` axes."""
    if len(strides) != rank:
        raise ShapeError(
            f"{where}: strides {tuple(strides)} for {rank} axes; give one for each axis, in bytes"
        )
    return tuple(operator.index(step) for step in reversed(strides))


def permute(x: Tensor, axes: Sequence[int], *, name: str = "") -> Tensor:
    """A view of `x` whose axis `i` is axis `axes[i]` of `x`, as in `numpy.transpose`.

    >>> x = tp.input("x", (2, 3, 4), tp.F32)
    >>> tp.permute(x, (2, 0, 1)).shape
    (4, 2, 3)
    """
    return apply(PERMUTE, x, axes=moves_of(x, axes, "permute"), name=name)


def transpose(x: Tensor, *, name: str = "") -> Tensor:
    """A view of `x` with its two fastest dimensions swapped.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.transpose(x).shape
    (3, 2)
    """
    if x.splits_blocks:
        return x.sources[0]
    return apply(TRANSPOSE, x, name=name)


def view_ne(
    x: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], *, rank: int, offset: int, name: str = ""
) -> Tensor:
    """A view into the memory of `x`: sizes `ne` and strides `nb` in ggml order, `offset` in bytes.

    Missing sizes are 1; missing strides are those of contiguous memory. `rank` is the number of
    dimensions. Raises ShapeError.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> tp.view_ne(x, (3, 4), (4, 24), rank=2, offset=12).shape
    (4, 3)
    """
    sizes, steps = pad_ne(ne), [*nb] or [x.nb[0]]
    if len(steps) == 1:
        steps.append(sizes[0] // x.dtype.block * steps[0])
    while len(steps) < MAX_RANK:
        steps.append(steps[-1] * sizes[len(steps) - 1])
    return apply(VIEW, x, ne=sizes, rank=rank, nb=tuple(steps), offset=offset, name=name)
