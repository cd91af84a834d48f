"""Copies: into other memory, layouts and types; concatenated, tiled, or into part of a tensor."""

from collections.abc import Iterable, Mapping, Sequence

from tensorplug.dtypes import DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import GraphError, ShapeError
from tensorplug.graph.tensor import Ne, Tensor, ne_of
from tensorplug.ops.axes import dim_of
from tensorplug.ops.rules import (
    ANY,
    ONLY_F32,
    PLAIN,
    can_repeat,
    check_written,
    contiguous,
    overlap,
    overlaps_itself,
    same_shape_as,
    same_type_as,
)
from tensorplug.ops.split import AXES, PARTIAL, Way, aligned
from tensorplug.ops.table import (
    Alias,
    Call,
    Op,
    Param,
    Shape,
    Source,
    apply,
    register_op,
    replaceable_sources,
)
from tensorplug.ops.view import check_window, nb_of


def _dup_type(call: Call) -> DType:
    name = call.params["to"]
    assert isinstance(name, str)
    return dtype_of(name) if name else call["x"].dtype


def _converted_parts(call: Call) -> Iterable[Way]:
    # Conversion to integers or blocks is not linear: converted summands do not add up to the sum.
    wanted = _dup_type(call)
    if wanted is call["x"].dtype or wanted.is_float:
        yield Way({"x": PARTIAL}, PARTIAL)
    yield from aligned("x")(call)


DUP = register_op(
    Op(
        "dup",
        sources=(Source("x", ANY),),
        params=(Param("to", str, default=""),),
        shape=same_shape_as("x"),
        dtype=_dup_type,
        split=_converted_parts,
        formula="y = a contiguous copy of x, of the type `to` if one is given",
    )
)


def _contiguous_shape(call: Call) -> Shape:
    x, wanted = call["x"], call.params["ne"]
    if not wanted:
        return x.ne, x.rank
    assert isinstance(wanted, tuple)
    a, b, c, d = (n if isinstance(n, int) else -1 for n in wanted)
    if a * b * c * d != x.size:
        raise call.fail(f"{x.size} elements do not fill sizes {wanted}")
    return (a, b, c, d), call.int("rank")


def _kept_parts(call: Call) -> Iterable[Way]:
    yield Way({"x": PARTIAL}, PARTIAL)
    # With other sizes a slice of the result has elements of several slices of x.
    if not call.params["ne"]:
        yield from aligned("x")(call)


CONT = register_op(
    Op(
        "cont",
        sources=(Source("x", ANY),),
        params=(Param("ne", tuple, default=()), Param("rank", int, default=0)),
        shape=_contiguous_shape,
        dtype=same_type_as("x"),
        split=_kept_parts,
        formula="y = x, contiguous, elements in order, with another shape if one is given",
    )
)


def _target_shape(call: Call) -> Shape:
    x, target = call["x"], call["target"]
    if x.size != target.size:
        raise call.fail(f"x has {x.size} elements and target {target.size}")
    return target.ne, target.rank


def _copies_apart(call: Call) -> None:
    if overlap(call["x"], call["target"]):
        raise call.fail("x and target overlap; cont() x first, as cpy() does")


def _over_target(call: Call) -> Alias:
    return Alias(call["target"], 0, call["target"].nb)


def _copied_parts(call: Call) -> Iterable[Way]:
    return aligned("x", "target")(call) if call["x"].ne == call["target"].ne else ()


CPY = register_op(
    Op(
        "cpy",
        sources=(Source("x", ANY), Source("target", ANY)),
        shape=_target_shape,
        dtype=same_type_as("target"),
        alias=_over_target,
        check=(_copies_apart, check_written("target")),
        writes=True,
        split=_copied_parts,
        formula="target = x, element by element in order, converted; y is target",
    )
)


def _joined(call: Call) -> Shape:
    a, b, dim = call["a"], call["b"], call.int("dim")
    if not 0 <= dim < 4:
        raise call.fail(f"dim = {dim} is not between 0 and 3")
    if a.dtype is not b.dtype:
        raise call.fail(f"types differ: {a.dtype.name} and {b.dtype.name}")
    if any(a.ne[i] != b.ne[i] for i in range(4) if i != dim):
        raise call.fail(f"sizes differ outside dimension {dim}")
    ne = list(a.ne)
    ne[dim] += b.ne[dim]
    return (ne[0], ne[1], ne[2], ne[3]), max(a.rank, b.rank, dim + 1)


def _joined_parts(call: Call) -> Iterable[Way]:
    yield Way({"a": PARTIAL, "b": PARTIAL}, PARTIAL)
    yield from (Way({"a": axis, "b": axis}, axis) for axis in AXES if axis != call.int("dim"))


CONCAT = register_op(
    Op(
        "concat",
        sources=(Source("a", PLAIN), Source("b", PLAIN)),
        params=(Param("dim", int, default=0),),
        shape=_joined,
        dtype=same_type_as("a"),
        split=_joined_parts,
        formula="y = b after a along dim (ggml order)",
    )
)


def _tiled(call: Call) -> Shape:
    x, wanted = call["x"], call.params["ne"]
    assert isinstance(wanted, tuple)
    a, b, c, d = (n if isinstance(n, int) else 0 for n in wanted)
    ne: Ne = (a, b, c, d)
    if not can_repeat(x, ne):
        raise call.fail(f"x does not repeat to sizes {wanted}")
    return ne, call.int("rank")


def _repeated_parts(call: Call) -> Iterable[Way]:
    wanted = call.params["ne"]
    assert isinstance(wanted, tuple)
    kept = [axis for axis in AXES if call["x"].ne[axis] == wanted[axis]]
    yield Way({"x": PARTIAL}, PARTIAL)
    yield from aligned("x", axes=kept)(call)


REPEAT = register_op(
    Op(
        "repeat",
        sources=(Source("x", PLAIN),),
        params=(Param("ne", tuple, required=True), Param("rank", int, required=True)),
        shape=_tiled,
        dtype=same_type_as("x"),
        split=_repeated_parts,
        formula="y = x, tiled to the sizes of y",
    )
)


def _part_fits(call: Call) -> None:
    a, part = call["a"], call["part"]
    nb = (a.dtype.size, call.int("nb1"), call.int("nb2"), call.int("nb3"))
    check_window(call, a, part.ne, nb, call.int("offset"))
    if overlaps_itself(a.dtype, part.ne, nb):
        raise call.fail(
            f"elements of the window overlap: sizes {part.ne}, strides {nb} bytes; write the parts "
            "that overlap one after the other"
        )


def _into_part(name: str, formula: str) -> Op:
    return register_op(
        Op(
            name,
            sources=(Source("a", ONLY_F32), Source("part", ONLY_F32)),
            params=tuple(Param(p, int, required=True) for p in ("nb1", "nb2", "nb3", "offset")),
            shape=same_shape_as("a"),
            dtype=same_type_as("a"),
            check=(contiguous("a"), _part_fits),
            in_place=("a",),
            formula=formula,
        )
    )


ACC = _into_part("acc", "y = a; view(y, nb1, nb2, nb3, offset) += part")
SET = _into_part("set", "y = a; view(y, nb1, nb2, nb3, offset) = part")


def dup(x: Tensor, *, to: DTypeLike | None = None, name: str = "") -> Tensor:
    """A contiguous copy of `x`, of any type; converted if `to` names another type.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.dup(x, to="f16").dtype.name
    'f16'
    """
    return apply(DUP, x, to="" if to is None else dtype_of(to).name, name=name)


def cont(x: Tensor, shape: tuple[int, ...] | None = None, *, name: str = "") -> Tensor:
    """A contiguous copy of `x`, of any type; with `shape` (NumPy order) also reshaped.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.cont(x.T, (6,)).shape
    (6,)
    """
    if shape is None:
        return apply(CONT, x, name=name)
    ne, rank = ne_of(shape, "cont")
    return apply(CONT, x, ne=ne, rank=rank, name=name)


def cpy(x: Tensor, target: Tensor, *, name: str = "") -> Tensor:
    """Write `x` into the memory of `target`, converted to its type; an effect.

    Elements are copied in order; the shapes may differ, but not the number of elements. The result
    is `target` after the write. If `x` and `target` overlap, `x` is copied to other memory first:
    the source and target that a backend gets never overlap, except if a tensor is copied to itself.

    >>> with tp.open("cpu") as cpu:
    ...     target = cpu.place("target", np.zeros((2, 3), np.float16))
    ...     kept = tp.cpy(tp.input("x", (2, 3), tp.F32), target)
    >>> kept.dtype.name
    'f16'
    """
    return apply(CPY, cont(x) if overlap(x, target) else x, target, name=name)


def cast(x: Tensor, to: DTypeLike, *, name: str = "") -> Tensor:
    """`x` converted to the type `to`, contiguous: the op `dup`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.cast(x, tp.F16).dtype.name
    'f16'
    """
    return dup(x, to=dtype_of(to), name=name)


def concat(a: Tensor, b: Tensor, *, axis: int = 0, name: str = "") -> Tensor:
    """Concatenate `a` and `b`, of one type, along `axis`. Raises ShapeError.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (5, 3), tp.F32)
    >>> tp.concat(a, b).shape
    (7, 3)
    """
    longer = a if a.rank >= b.rank else b
    return apply(CONCAT, a, b, dim=dim_of(longer, axis, "concat"), name=name)


def repeat(x: Tensor, shape: tuple[int, ...], *, name: str = "") -> Tensor:
    """Tile `x` to `shape` (NumPy order); each size must be a multiple of the same size of `x`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.repeat(x, (4, 6)).shape
    (4, 6)
    """
    ne, rank = ne_of(shape, "repeat")
    return apply(REPEAT, x, ne=ne, rank=rank, name=name)


def acc(
    a: Tensor,
    part: Tensor,
    *,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    name: str = "",
) -> Tensor:
    """A copy of f32 `a` with `part` added to a view into it.

    The view is `view(a, part.shape, strides=strides, offset=offset)`, with 4 bytes as the last
    stride. Raises ShapeError if it would reach outside `a`, or if its elements would overlap.

    >>> a = tp.input("a", (4, 3), tp.F32)
    >>> part = tp.input("part", (2, 3), tp.F32)
    >>> tp.acc(a, part, offset=12).shape  # rows 1 and 2
    (4, 3)
    """
    return apply(ACC, a, part, **_window("acc", a, part, strides), offset=offset, name=name)


def set(
    a: Tensor,
    part: Tensor,
    *,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    name: str = "",
) -> Tensor:
    """A copy of f32 `a` with `part` in place of a view into it.

    The view is `view(a, part.shape, strides=strides, offset=offset)`, with 4 bytes as the last
    stride. Raises ShapeError if it would reach outside `a`, or if its elements would overlap.

    >>> a = tp.input("a", (4, 3), tp.F32)
    >>> part = tp.input("part", (2, 3), tp.F32)
    >>> tp.set(a, part, offset=12).shape  # rows 1 and 2
    (4, 3)
    """
    return apply(SET, a, part, **_window("set", a, part, strides), offset=offset, name=name)


def _window(
    where: str, a: Tensor, part: Tensor, strides: Sequence[int] | None
) -> Mapping[str, int]:
    """The parameters of a window of the shape of `part`. Raises ShapeError."""
    nb = a.nb[: part.rank] if strides is None else nb_of(strides, part.rank, where)
    if part.ne[0] > 1 and nb[0] != a.dtype.size:
        raise ShapeError(
            f"{where}: the last stride is {nb[0]} bytes, and elements of a row are "
            f"{a.dtype.size} bytes apart; transpose both tensors first"
        )
    # Strides of dimensions of size 1, as are those that `part` does not have, are never used.
    steps = (*nb[1:], *a.nb[max(part.rank, 1) :])
    return dict(zip(("nb1", "nb2", "nb3"), steps, strict=True))


def in_place(node: Tensor) -> Tensor:
    """Return a copy of `node` that is computed over the memory of a source: an effect.

    The source is the first one that the op may replace and that has the layout of the result.
    Raises GraphError if there is none. Other sources that lie over its memory are copied first, so
    the op reads them as they were.

    >>> with tp.open("cpu") as cpu:
    ...     total = cpu.place("total", np.zeros(3, np.float32))
    ...     kept = tp.in_place(total + tp.input("x", (3,), tp.F32))
    >>> kept.op, kept.writes
    ('add', True)
    """
    target = next((t for t in replaceable_sources(node) if t.same_layout(node)), None)
    if target is None:
        raise GraphError(
            f"in_place: {node} cannot replace a source: none that its op may replace has its layout"
        )
    operands = tuple(cont(t) if t is not None and overlap(t, target) else t for t in node.operands)
    return computed_over(node, operands, target)


def computed_over(node: Tensor, operands: Sequence[Tensor | None], target: Tensor) -> Tensor:
    """`node` of `operands`, computed over the memory of `target`, one of them: an effect.

    Raises GraphError if the layouts of `target` and of the result differ.
    """
    if not target.same_layout(node):
        raise GraphError(f"in_place: {node} cannot replace {target}, which has another layout")
    return Tensor(
        node.dtype,
        node.ne,
        node.nb,
        node.rank,
        node.op,
        tuple(operands),
        node.params,
        view_of=target.root,
        view_offset=target.view_offset,
        writes=True,
        name=node.name,
    )
