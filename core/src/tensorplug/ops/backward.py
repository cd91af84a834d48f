"""Gradients: ops that give the gradient of a source from the gradient of a result."""

from collections.abc import Iterable
from typing import Required, TypedDict, Unpack

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rope import ROPE
from tensorplug.ops.rules import (
    ONLY_F32,
    REAL,
    always,
    repeat_over_batch,
    same_shape_as,
    same_shapes,
    same_type_as,
    scalar,
)
from tensorplug.ops.split import AXES, PARTIAL, Way, aligned, any_of, linear
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

SILU_BACK = register_op(
    Op(
        "silu_back",
        sources=(Source("grad", REAL), Source("x", REAL)),
        shape=same_shape_as("grad"),
        dtype=same_type_as("grad"),
        check=(same_shapes("grad", "x"),),
        in_place=("grad",),
        split=any_of(aligned("grad", "x"), linear("grad")),
        formula="y = grad * s * (1 + x * (1 - s)), s = 1 / (1 + exp(-x))",
    )
)

RMS_NORM_BACK = register_op(
    Op(
        "rms_norm_back",
        sources=(Source("grad", ONLY_F32), Source("x", ONLY_F32)),
        params=(Param("eps", float, default=1e-6),),
        shape=same_shape_as("grad"),
        dtype=always(F32),
        check=(same_shapes("grad", "x"),),
        in_place=("grad",),
        split=any_of(aligned("grad", "x", axes=AXES[1:]), linear("grad")),
        formula="y = r * (grad - x * r**2 * mean(x * grad)), r = 1 / sqrt(mean(x**2) + eps)",
    )
)

SOFT_MAX_BACK = register_op(
    Op(
        "soft_max_back",
        sources=(Source("grad", ONLY_F32), Source("y", ONLY_F32)),
        params=(Param("scale", float, default=1.0),),
        shape=same_shape_as("grad"),
        dtype=always(F32),
        check=(same_shapes("grad", "y"),),
        in_place=("grad",),
        split=any_of(aligned("grad", "y", axes=AXES[1:]), linear("grad")),
        formula="scale * y * (grad - sum over i of y[i] * grad[i])",
    )
)

ROPE_BACK = register_op(
    Op(
        "rope_back",
        sources=ROPE.sources,
        params=ROPE.params,
        shape=ROPE.shape,
        dtype=ROPE.dtype,
        check=ROPE.check,
        in_place=("x",),
        split=any_of(ROPE.split, linear("x")),
        formula="rope with all angles negated",
        origin=ROPE.origin,
    )
)


def _labelled(call: Call) -> None:
    if not call["logits"].size:
        raise call.fail("there are no logits")
    if "grad" in call.op.positions and call["grad"].size != 1:
        raise call.fail("grad must be one element, the gradient of the loss")


CROSS_ENTROPY_LOSS = register_op(
    Op(
        "cross_entropy_loss",
        sources=(Source("logits", ONLY_F32), Source("labels", ONLY_F32)),
        shape=scalar,
        dtype=always(F32),
        check=(same_shapes("logits", "labels"), _labelled),
        formula="y = -sum(labels * log(softmax(logits))) / rows",
    )
)

CROSS_ENTROPY_LOSS_BACK = register_op(
    Op(
        "cross_entropy_loss_back",
        sources=(
            Source("grad", ONLY_F32),
            Source("logits", ONLY_F32),
            Source("labels", ONLY_F32),
        ),
        shape=same_shape_as("logits"),
        dtype=always(F32),
        check=(same_shapes("logits", "labels"), _labelled),
        split=linear("grad"),
        formula="y = grad * (softmax(logits) - labels) / rows",
    )
)


UNIT = 4
"""Gradients of attention start at multiples of this number of elements: 16 bytes, as in ggml."""


def _gradients(call: Call) -> Shape:
    q, k, v, grad = (call[name] for name in ("q", "k", "v", "grad"))
    if not q.ne[0]:
        raise call.fail("the head size is 0")
    if q.ne[0] != k.ne[0] or k.ne[1] != v.ne[0] or k.ne[2:] != v.ne[2:]:
        raise call.fail("k must be [size, positions, ...] and v [positions, value size, ...]")
    if not repeat_over_batch(k, q):
        raise call.fail("the heads or the batch of q are not a multiple of those of k")
    if grad.ne != (v.ne[1], q.ne[1], q.ne[2], q.ne[3]):
        raise call.fail(f"grad must have ne {(v.ne[1], q.ne[1], q.ne[2], q.ne[3])}")
    if call.params["masked"] and k.ne[1] < q.ne[1]:
        raise call.fail(f"a causal mask needs at least {q.ne[1]} positions")
    return (sum(-(-t.size // UNIT) * UNIT for t in (q, k, v)), 1, 1, 1), 1


def _gradient_parts(_call: Call) -> Iterable[Way]:
    return (Way({"grad": PARTIAL}, PARTIAL),)


FLASH_ATTN_BACK = register_op(
    Op(
        "flash_attn_back",
        sources=tuple(Source(name, ONLY_F32) for name in ("q", "k", "v", "grad")),
        params=(Param("masked", bool, default=False),),
        shape=_gradients,
        dtype=always(F32),
        split=_gradient_parts,
        formula="gradients of softmax(q k / sqrt(size)) v: those of q, k and v, padded by zeros",
        origin="the chain rule; the result is packed as in ggml, whose kernel is out of date",
    )
)


def silu_back(grad: Tensor, x: Tensor, *, name: str = "") -> Tensor:
    """Gradient of `silu(x)`, in the shape and type of `grad`; f32, f16, bf16.

    >>> grad = tp.input("grad", (2, 8), tp.F32)
    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> tp.silu_back(grad, x).shape
    (2, 8)
    """
    return apply(SILU_BACK, grad, x, name=name)


def rms_norm_back(grad: Tensor, x: Tensor, *, eps: float = 1e-6, name: str = "") -> Tensor:
    """Gradient of `rms_norm(x, eps)`, of the shape of both; f32.

    >>> grad = tp.input("grad", (2, 8), tp.F32)
    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> tp.rms_norm_back(grad, x).shape
    (2, 8)
    """
    return apply(RMS_NORM_BACK, grad, x, eps=float(eps), name=name)


def soft_max_back(grad: Tensor, y: Tensor, *, scale: float = 1.0, name: str = "") -> Tensor:
    """Gradient of `y = soft_max(x, scale=scale)`, of the shape of both; f32.

    >>> grad = tp.input("grad", (2, 8), tp.F32)
    >>> y = tp.input("y", (2, 8), tp.F32)
    >>> tp.soft_max_back(grad, y).shape
    (2, 8)
    """
    return apply(SOFT_MAX_BACK, grad, y, scale=float(scale), name=name)


class Rotation(TypedDict, total=False):
    """The parameters of `rope`, with its defaults."""

    dims: Required[int]
    mode: str
    base: float
    scale: float
    original_context: int
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    sections: tuple[int, ...]
    offset: int


def rope_back(
    x: Tensor,
    positions: Tensor,
    factors: Tensor | None = None,
    *,
    name: str = "",
    **rotation: Unpack[Rotation],
) -> Tensor:
    """Gradient of `rope` with the same parameters; `x` is the gradient of its result.

    >>> grad = tp.input("grad", (5, 8, 64), tp.F32)
    >>> positions = tp.input("positions", (5,), tp.I32)
    >>> tp.rope_back(grad, positions, dims=64).shape
    (5, 8, 64)
    """
    return apply(ROPE_BACK, x, positions, factors, name=name, **rotation)


def cross_entropy_loss(logits: Tensor, labels: Tensor, *, name: str = "") -> Tensor:
    """Cross entropy of `labels` and softmax(`logits`), mean over rows: one f32 element.

    Both are f32 of one shape; each row of `labels` sums to 1.

    >>> logits = tp.input("logits", (2, 8), tp.F32)
    >>> labels = tp.input("labels", (2, 8), tp.F32)
    >>> tp.cross_entropy_loss(logits, labels).shape
    ()
    """
    return apply(CROSS_ENTROPY_LOSS, logits, labels, name=name)


def cross_entropy_loss_back(
    grad: Tensor, logits: Tensor, labels: Tensor, *, name: str = ""
) -> Tensor:
    """Gradient of `cross_entropy_loss` with respect to `logits`; `grad` is that of the loss [1].

    >>> grad = tp.input("grad", (1,), tp.F32)
    >>> logits = tp.input("logits", (2, 8), tp.F32)
    >>> labels = tp.input("labels", (2, 8), tp.F32)
    >>> tp.cross_entropy_loss_back(grad, logits, labels).shape
    (2, 8)
    """
    return apply(CROSS_ENTROPY_LOSS_BACK, grad, logits, labels, name=name)


def flash_attn_back(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, *, masked: bool = False, name: str = ""
) -> Tensor:
    """Gradients of attention with respect to `q`, `k` and `v`, concatenated to one f32 vector.

    Each gradient starts at a multiple of 16 bytes (`UNIT` elements); the padding is zeros. In `ne`
    order `q` is [size, tokens, heads, batch], `k` [size, positions, kv heads, b], `v` [positions,
    value size, kv heads, b], and `grad`, the gradient of the result, [value size, tokens, heads,
    batch]. Consecutive heads of `q` share a head of `k`. Scores are scaled by 1 / sqrt(size). With
    `masked`, token i attends to the positions up to i + positions - tokens. Raises ShapeError.

    >>> q = tp.input("q", (8, 5, 64), tp.F32)
    >>> k = tp.input("k", (2, 20, 64), tp.F32)
    >>> v = tp.input("v", (2, 64, 20), tp.F32)
    >>> grad = tp.input("grad", (8, 5, 64), tp.F32)
    >>> tp.flash_attn_back(q, k, v, grad).shape
    (7680,)
    """
    return apply(FLASH_ATTN_BACK, q, k, v, grad, masked=masked, name=name)
