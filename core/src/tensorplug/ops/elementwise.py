"""Arithmetic element by element: two tensors, or a tensor and constants."""

import math
from collections.abc import Iterable

from tensorplug.dtypes import F32, DType, DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import (
    BLOCKS,
    IDS,
    ONLY_F32,
    REAL,
    always,
    repeats_to,
    same_shape_as,
    same_type_as,
)
from tensorplug.ops.split import PARTIAL, SplitRule, Way, aligned, any_of, linear, ways
from tensorplug.ops.table import Call, Op, Param, Source, apply, register_op


def _binary(name: str, sign: str, *summands: SplitRule) -> Op:
    return register_op(
        Op(
            name,
            sources=(Source("a", REAL), Source("b", REAL)),
            shape=same_shape_as("a"),
            dtype=same_type_as("a"),
            check=(repeats_to("b", "a"),),
            in_place=("a", "b"),
            split=any_of(aligned("a", "b"), *summands),
            formula=f"y = a {sign} repeat(b)",
        )
    )


def _summands(call: Call) -> Iterable[Way]:
    # Encoding is not linear: encoded summands do not add up to the encoded sum.
    return () if call["a"].dtype.is_block else linear("a", "b")(call)


def _sum_type(call: Call) -> DType:
    name = call.params["to"]
    assert isinstance(name, str)
    wanted = dtype_of(name) if name else call["a"].dtype
    if name and wanted not in REAL:
        raise call.fail(f"the sum cannot be {name}; choose f32, f16 or bf16")
    return wanted


ADD = register_op(
    Op(
        "add",
        sources=(Source("a", REAL | BLOCKS), Source("b", REAL)),
        params=(Param("to", str, default=""),),
        shape=same_shape_as("a"),
        dtype=_sum_type,
        check=(repeats_to("b", "a"),),
        in_place=("a", "b"),
        split=any_of(aligned("a", "b"), _summands),
        formula="y = a + repeat(b), of the type of a or of the type `to`",
    )
)
SUB = _binary("sub", "-", linear("a", "b"))
MUL = _binary("mul", "*", linear("a"), linear("b"))
DIV = _binary("div", "/", linear("a"))


def _one_element(call: Call) -> None:
    if call["b"].size != 1:
        raise call.fail("b must be one element")


ADD1 = register_op(
    Op(
        "add1",
        sources=(Source("a", REAL | BLOCKS), Source("b", REAL)),
        shape=same_shape_as("a"),
        dtype=same_type_as("a"),
        check=(_one_element,),
        in_place=("a",),
        split=any_of(aligned("a"), _summands),
        formula="y = a + b, where b is one element",
    )
)


def _expert_bias(call: Call) -> None:
    a, b, ids = call["a"], call["b"], call["ids"]
    if a.ne[0] != b.ne[0] or ids.ne[0] != a.ne[1] or ids.ne[1] != a.ne[2]:
        raise call.fail("b must have rows as long as a's, ids one entry for each row of a")


ADD_ID = register_op(
    Op(
        "add_id",
        sources=(
            Source("a", ONLY_F32),
            Source("b", ONLY_F32),
            Source("ids", IDS, rows_of=("b", 1)),
        ),
        shape=same_shape_as("a"),
        dtype=same_type_as("a"),
        check=(_expert_bias,),
        in_place=("a",),
        split=ways(
            Way({"a": 0, "b": 0}, 0),
            Way({"a": 1, "ids": 0}, 1),
            Way({"a": 2, "ids": 1}, 2),
            Way({"a": PARTIAL, "b": PARTIAL}, PARTIAL),
        ),
        formula="y[:, i, j] = a[:, i, j] + b[:, ids[i, j]]; a for the id -1",
    )
)


def _scaled_summands(call: Call) -> Iterable[Way]:
    return () if call.params["bias"] else linear("x")(call)


SCALE = register_op(
    Op(
        "scale",
        sources=(Source("x", REAL),),
        params=(Param("scale", float, required=True), Param("bias", float, default=0.0)),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=any_of(aligned("x"), _scaled_summands),
        formula="y = scale * x + bias",
    )
)

CLAMP = register_op(
    Op(
        "clamp",
        sources=(Source("x", REAL),),
        params=(Param("min", float, required=True), Param("max", float, required=True)),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=aligned("x"),
        formula="y = min(max(x, min), max)",
    )
)

LEAKY_RELU = register_op(
    Op(
        "leaky_relu",
        sources=(Source("x", REAL),),
        params=(Param("slope", float, default=0.01),),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=aligned("x"),
        formula="y = x if x > 0 else slope * x",
    )
)

FILL = register_op(
    Op(
        "fill",
        sources=(Source("x", REAL),),
        params=(Param("value", float, required=True),),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=aligned("x"),
        formula="y = value, in the shape of x",
    )
)


def _arange_length(call: Call) -> tuple[tuple[int, int, int, int], int]:
    start, stop, step = (call.params[k] for k in ("start", "stop", "step"))
    assert isinstance(start, float)
    assert isinstance(stop, float)
    assert isinstance(step, float)
    if not all(map(math.isfinite, (start, stop, step))) or not step or (stop - start) / step < 0:
        raise call.fail(f"no steps of {step} lead from {start} to {stop}")
    return (math.ceil((stop - start) / step), 1, 1, 1), 1


ARANGE = register_op(
    Op(
        "arange",
        sources=(),
        params=tuple(Param(name, float, required=True) for name in ("start", "stop", "step")),
        shape=_arange_length,
        dtype=always(F32),
        formula="y[i] = start + i * step, for ceil((stop - start) / step) elements",
    )
)


def add(a: Tensor, b: Tensor, *, to: DTypeLike | None = None, name: str = "") -> Tensor:
    """Sum of `a` and `b`; `b` (f32, f16 or bf16) is tiled to the shape of `a`.

    The result has the type `to` (f32, f16 or bf16), by default the type of `a`. If that is a block
    type, `a` is decoded and the sum is encoded again.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (3,), tp.F32)
    >>> tp.add(a, b).shape
    (2, 3)
    """
    return apply(ADD, a, b, to="" if to is None else dtype_of(to).name, name=name)


def add1(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Add the only element of `b` (f32, f16 or bf16) to each element of `a`.

    The result has the type of `a`, which may be a block type.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (1,), tp.F32)
    >>> tp.add1(a, b).shape
    (2, 3)
    """
    return apply(ADD1, a, b, name=name)


def sub(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Difference of `a` and `b`, f32, f16 or bf16; `b` is tiled to `a`. The type is that of `a`.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (3,), tp.F32)
    >>> tp.sub(a, b).shape
    (2, 3)
    """
    return apply(SUB, a, b, name=name)


def mul(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Product of `a` and `b`, f32, f16 or bf16; `b` is tiled to `a`. The type is that of `a`.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (3,), tp.F32)
    >>> tp.mul(a, b).shape
    (2, 3)
    """
    return apply(MUL, a, b, name=name)


def div(a: Tensor, b: Tensor, *, name: str = "") -> Tensor:
    """Quotient of `a` and `b`, f32, f16 or bf16; `b` is tiled to `a`. The type is that of `a`.

    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (3,), tp.F32)
    >>> tp.div(a, b).shape
    (2, 3)
    """
    return apply(DIV, a, b, name=name)


def add_id(a: Tensor, b: Tensor, ids: Tensor, *, name: str = "") -> Tensor:
    """Add rows of `b` [n, experts] to the rows of `a` [n, used, tokens], both f32.

    The i32 `ids` [used, tokens] number the rows of `b`. The id -1 adds nothing. Any other id
    outside `b` is an error; `tensorplug.ops.ids` says when it is raised. Sizes are in `ne` order.

    >>> a = tp.input("a", (5, 2, 8), tp.F32)
    >>> b = tp.input("b", (4, 8), tp.F32)
    >>> ids = tp.input("ids", (5, 2), tp.I32)
    >>> tp.add_id(a, b, ids).shape
    (5, 2, 8)
    """
    return apply(ADD_ID, a, b, ids, name=name)


def scale(x: Tensor, scale: float, *, bias: float = 0.0, name: str = "") -> Tensor:
    """`scale * x + bias`; `x` is f32, f16 or bf16, and the result has its type.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.scale(x, 0.5, bias=1).shape
    (2, 3)
    """
    return apply(SCALE, x, scale=float(scale), bias=float(bias), name=name)


def clamp(x: Tensor, min: float, max: float, *, name: str = "") -> Tensor:
    """`x` limited to the range from `min` to `max`; f32, f16 or bf16.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.clamp(x, -1, 1).shape
    (2, 3)
    """
    return apply(CLAMP, x, min=float(min), max=float(max), name=name)


def leaky_relu(x: Tensor, *, slope: float = 0.01, name: str = "") -> Tensor:
    """`x` where it is positive, `slope * x` elsewhere; f32, f16 or bf16.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.leaky_relu(x, slope=0.1).shape
    (2, 3)
    """
    return apply(LEAKY_RELU, x, slope=float(slope), name=name)


def fill(x: Tensor, value: float, *, name: str = "") -> Tensor:
    """A tensor of the shape and type of `x` with `value` in every element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.fill(x, 7).shape
    (2, 3)
    """
    return apply(FILL, x, value=float(value), name=name)


def arange(start: float, stop: float, step: float = 1.0, *, name: str = "") -> Tensor:
    """An f32 vector of `start`, `start + step`, and so on, without `stop`. Raises ShapeError.

    >>> tp.arange(0, 10, 2).shape
    (5,)
    """
    return apply(ARANGE, start=float(start), stop=float(stop), step=float(step), name=name)
