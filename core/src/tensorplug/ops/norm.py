"""Normalisation: rows, or groups of channels, divided by a statistic of their own elements."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, always, same_shape_as
from tensorplug.ops.split import AXES, aligned
from tensorplug.ops.table import Call, Op, Param, Source, apply, register_op


def _norm(name: str, formula: str, origin: str, eps: float) -> Op:
    return register_op(
        Op(
            name,
            sources=(Source("x", ONLY_F32),),
            params=(Param("eps", float, default=eps),),
            shape=same_shape_as("x"),
            dtype=always(F32),
            in_place=("x",),
            split=aligned("x", axes=AXES[1:]),
            formula=formula,
            origin=origin,
        )
    )


NORM = _norm(
    "norm",
    "y = (x - mean) / sqrt(variance + eps), over ne[0]",
    "Ba et al. 2016, arXiv:1607.06450",
    1e-5,
)
RMS_NORM = _norm(
    "rms_norm",
    "y = x / sqrt(mean(x**2) + eps), over ne[0]",
    "Zhang and Sennrich 2019, arXiv:1910.07467",
    1e-6,
)
L2_NORM = _norm("l2_norm", "y = x / max(sqrt(sum(x**2)), eps), over ne[0]", "ggml", 1e-12)


def _groups_fit(call: Call) -> None:
    if call.int("groups") < 1:
        raise call.fail(f"groups = {call.int('groups')} is not positive")


GROUP_NORM = register_op(
    Op(
        "group_norm",
        sources=(Source("x", ONLY_F32),),
        params=(Param("groups", int, required=True), Param("eps", float, default=1e-6)),
        shape=same_shape_as("x"),
        dtype=always(F32),
        check=(_groups_fit,),
        split=aligned("x", axes=(3,)),
        formula="norm over ne[0], ne[1] and ceil(ne[2] / groups) channels at a time",
        origin="Wu and He 2018, arXiv:1803.08494",
    )
)


def norm(x: Tensor, *, eps: float = 1e-5, name: str = "") -> Tensor:
    """Layer normalisation of each row of f32 `x`, without weight and bias.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.norm(x).shape
    (2, 3)
    """
    return apply(NORM, x, eps=float(eps), name=name)


def rms_norm(x: Tensor, *, eps: float = 1e-6, name: str = "") -> Tensor:
    """Each row of f32 `x` divided by its root mean square.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.rms_norm(x).shape
    (2, 3)
    """
    return apply(RMS_NORM, x, eps=float(eps), name=name)


def l2_norm(x: Tensor, *, eps: float = 1e-12, name: str = "") -> Tensor:
    """Each row of f32 `x` divided by its Euclidean length, or by `eps` if that is larger.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.l2_norm(x).shape
    (2, 3)
    """
    return apply(L2_NORM, x, eps=float(eps), name=name)


def group_norm(x: Tensor, groups: int, *, eps: float = 1e-6, name: str = "") -> Tensor:
    """Normalise f32 images `x` [w, h, channels, n] over groups of consecutive channels.

    >>> x = tp.input("x", (1, 8, 16, 16), tp.F32)
    >>> tp.group_norm(x, 4).shape
    (1, 8, 16, 16)
    """
    return apply(GROUP_NORM, x, groups=groups, eps=float(eps), name=name)
