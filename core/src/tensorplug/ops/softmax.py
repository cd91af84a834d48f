"""Softmax of rows, and the causal mask."""

from collections.abc import Iterable

from tensorplug.dtypes import F16, F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import (
    ONLY_F32,
    REAL,
    always,
    check_max_bias,
    repeat_over_batch,
    same_shape_as,
    same_type_as,
)
from tensorplug.ops.split import Axis, Way, aligned
from tensorplug.ops.table import Call, Op, Param, Source, apply, register_op

MASKS = frozenset({F32, F16})


def _mask_fits(call: Call) -> None:
    x, mask, sinks = call["x"], call.get("mask"), call.get("sinks")
    if mask is not None:
        if mask.ne[0] != x.ne[0] or mask.ne[1] < x.ne[1]:
            raise call.fail("mask must have x's row length and at least x's number of rows")
        if not repeat_over_batch(mask, x):
            raise call.fail("mask does not repeat over dimensions 2 and 3 of x")
    if sinks is not None and sinks.ne != (x.ne[2], 1, 1, 1):
        raise call.fail("sinks must be a vector with one element for each head, ne[2] of x")
    check_max_bias(call)


def _parts(call: Call) -> Iterable[Way]:
    x, mask, sinks = call["x"], call.get("mask"), call.get("sinks")
    if mask is None or mask.ne[1] == x.ne[1]:
        yield from aligned("x", "mask", axes=(1,))(call)
    # With max_bias the slope of the mask depends on the number of the head: heads are not cut.
    if not call.params["max_bias"]:
        heads: dict[str, Axis] = {} if sinks is None else {"sinks": 0}
        for way in aligned("x", "mask", axes=(2,))(call):
            yield Way({**way.sources, **heads}, 2)
    yield from aligned("x", "mask", axes=(3,))(call)


SOFT_MAX = register_op(
    Op(
        "soft_max",
        sources=(
            Source("x", ONLY_F32),
            Source("mask", MASKS, optional=True),
            Source("sinks", ONLY_F32, optional=True),
        ),
        params=(Param("scale", float, default=1.0), Param("max_bias", float, default=0.0)),
        shape=same_shape_as("x"),
        dtype=always(F32),
        check=(_mask_fits,),
        in_place=("x",),
        split=_parts,
        formula="y = softmax over ne[0] of (scale * x + slope(head) * mask), sinks in the divisor",
        origin="Press et al. 2021, arXiv:2108.12409 for the slopes of max_bias",
    )
)

DIAG_MASK_INF = register_op(
    Op(
        "diag_mask_inf",
        sources=(Source("x", REAL),),
        params=(Param("n_past", int, default=0),),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=aligned("x", axes=(2, 3)),
        formula="y[i, j] = -inf if i > n_past + j else x[i, j]",
    )
)


def soft_max(
    x: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float = 1.0,
    max_bias: float = 0.0,
    name: str = "",
) -> Tensor:
    """Softmax of `scale * x + mask` over each row (`ne[0]`).

    `x` is f32 [n, rows, heads, batch]. `mask` is f32 or f16 [n, at least rows, ...]; head and batch
    i use mask i modulo the number of masks. `max_bias` above 0 scales the mask by a slope for each
    head (ALiBi). `sinks` [heads] adds one term per head to the divisor. A row of only -inf gives
    NaN. Raises ShapeError.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> mask = tp.input("mask", (4, 6), tp.F32)
    >>> tp.soft_max(x, mask, scale=0.125).shape
    (4, 6)
    """
    return apply(SOFT_MAX, x, mask, sinks, scale=float(scale), max_bias=float(max_bias), name=name)


def diag_mask_inf(x: Tensor, *, n_past: int = 0, name: str = "") -> Tensor:
    """f32 `x` with -inf in each row j right of column `n_past` + j.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> tp.diag_mask_inf(x, n_past=2).shape
    (4, 6)
    """
    return apply(DIAG_MASK_INF, x, n_past=n_past, name=name)
