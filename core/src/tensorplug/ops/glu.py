"""Gated linear units: the activation of one tensor times a second tensor.

With two sources the activation is applied to `x` and the result is multiplied by `gate`. With one
source each row of `x` holds both: the first half is activated (the second half with `swapped`), and
rows of the result are half as long. All units take f32, f16 or bf16 and keep the type.
"""

from collections.abc import Iterable

from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import REAL, same_shapes, same_type_as
from tensorplug.ops.split import Way, aligned
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op


def _half_row(call: Call) -> Shape:
    x = call["x"]
    if call.get("gate") is not None:
        return x.ne, x.rank
    if x.ne[0] % 2:
        raise call.fail("a row that holds both halves must have an even length")
    return (x.ne[0] // 2, x.ne[1], x.ne[2], x.ne[3]), x.rank


def _parts(call: Call) -> Iterable[Way]:
    # A row that holds both halves cannot be cut.
    apart = call.get("gate") is not None
    return aligned("x", "gate", axes=(0, 1, 2, 3) if apart else (1, 2, 3))(call)


def _glu(name: str, formula: str, *, params: tuple[Param, ...] = ()) -> Op:
    return register_op(
        Op(
            name,
            sources=(Source("x", REAL), Source("gate", REAL, optional=True)),
            params=(Param("swapped", bool, default=False), *params),
            shape=_half_row,
            dtype=same_type_as("x"),
            check=(same_shapes("x", "gate"),),
            split=_parts,
            formula=formula,
            origin="Shazeer 2020, arXiv:2002.05202",
        )
    )


GLU = {
    "reglu": _glu("reglu", "y = relu(x) * gate"),
    "geglu": _glu("geglu", "y = gelu(x) * gate"),
    "swiglu": _glu("swiglu", "y = silu(x) * gate"),
    "geglu_erf": _glu("geglu_erf", "y = gelu_erf(x) * gate"),
    "geglu_quick": _glu("geglu_quick", "y = gelu_quick(x) * gate"),
}

SWIGLU_OAI = _glu(
    "swiglu_oai",
    "a = min(x, limit), b = clamp(gate, -limit, limit): y = a / (1 + exp(-alpha * a)) * (b + 1)",
    params=(Param("alpha", float, default=1.702), Param("limit", float, default=7.0)),
)


def glu(
    op: str, x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """The gated linear unit called `op`, a key of `GLU`.

    >>> x = tp.input("x", (2, 16), tp.F32)
    >>> tp.glu("swiglu", x).shape  # the first half of a row, gated by the second
    (2, 8)
    """
    return apply(GLU[op], x, gate, swapped=swapped, name=name)


def reglu(
    x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """`relu(x) * gate`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.reglu(x, gate).shape
    (2, 8)
    """
    return glu("reglu", x, gate, swapped=swapped, name=name)


def geglu(
    x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """`gelu(x) * gate`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.geglu(x, gate).shape
    (2, 8)
    """
    return glu("geglu", x, gate, swapped=swapped, name=name)


def swiglu(
    x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """`silu(x) * gate`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.swiglu(x, gate).shape
    (2, 8)
    """
    return glu("swiglu", x, gate, swapped=swapped, name=name)


def geglu_erf(
    x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """`gelu_erf(x) * gate`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.geglu_erf(x, gate).shape
    (2, 8)
    """
    return glu("geglu_erf", x, gate, swapped=swapped, name=name)


def geglu_quick(
    x: Tensor, gate: Tensor | None = None, *, swapped: bool = False, name: str = ""
) -> Tensor:
    """`gelu_quick(x) * gate`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.geglu_quick(x, gate).shape
    (2, 8)
    """
    return glu("geglu_quick", x, gate, swapped=swapped, name=name)


def swiglu_oai(
    x: Tensor,
    gate: Tensor | None = None,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    swapped: bool = False,
    name: str = "",
) -> Tensor:
    """`swiglu` as in OpenAI's gpt-oss: `a / (1 + exp(-alpha * a)) * (b + 1)`.

    `a` is `x` clamped to at most `limit`, `b` is `gate` clamped to -`limit` to `limit`.

    >>> x = tp.input("x", (2, 8), tp.F32)
    >>> gate = tp.input("gate", (2, 8), tp.F32)
    >>> tp.swiglu_oai(x, gate).shape
    (2, 8)
    """
    return apply(
        SWIGLU_OAI, x, gate, swapped=swapped, alpha=float(alpha), limit=float(limit), name=name
    )
