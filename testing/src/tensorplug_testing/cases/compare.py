"""Comparison of a result with the reference. Each method describes what is wrong, if anything."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug.device import Rounding
from tensorplug.dtypes import (
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_1,
    Q5_0,
    Q5_1,
    Q5_K,
    Q8_1,
    Q8_K,
    TQ1_0,
    TQ2_0,
)
from tensorplug_cpu.reference import compute
from tensorplug_testing.cases.bounds import product_bound
from tensorplug_testing.cases.case import Built, Case

Array = npt.NDArray[Any]

NEAR: dict[tp.DType, tuple[float, float]] = {
    tp.F32: (1e-5, 1e-6),
    tp.F16: (2.0**-10, 1e-6),
    tp.BF16: (2.0**-7, 1e-6),
}
"""Allowed relative and absolute errors of single elements, for cases with `each`."""

OUTLIER = 30
"""Allowed error of a single element, in units of the root of the mean square limit."""
TINY = 1e-37
"""Errors up to this count as zero: subnormal numbers of f32 may be flushed to zero."""

STEPS: dict[tp.DType, float] = {
    tp.Q4_0: 1 / 8,
    Q4_1: 2 / 15,
    Q5_0: 1 / 16,
    Q5_1: 2 / 31,
    tp.Q8_0: 1 / 127,
    TQ1_0: 1,
    TQ2_0: 1,
    MXFP4: 1 / 2,
    NVFP4: 1 / 3,
    Q8_1: 1 / 127,
    Q8_K: 1 / 127,
    Q1_0: 2,
    Q2_0: 1,
    Q2_K: 2 / 3,
    Q3_K: 1 / 3,
    tp.Q4_K: 2 / 15,
    Q5_K: 2 / 31,
    tp.Q6_K: 1 / 31,
    IQ4_NL: 24 / 113,
    IQ4_XS: 24 / 113,
    **dict.fromkeys((IQ1_S, IQ1_M), 2),
    **dict.fromkeys((IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S), 2),
}
"""Distance of neighbouring values of a block, relative to the largest value of the block.

For codebooks of signs and magnitudes it is the distance of a value and its negative.
"""


def difference(
    case: Case, built: Built, got: Array, wanted: Array, rounding: Rounding = Rounding.NONE
) -> str:
    """Describe in a few words what is wrong with the values `got`; empty if they are right.

    `rounding` is the rounding that the stream declares for the node.
    """
    if got.shape != wanted.shape:
        return f"shape {got.shape}, wanted {wanted.shape}"
    if case.compare in _NEAR:
        wanted = _as_stored(built.node.dtype, wanted)
        odd = ~np.isfinite(wanted) | ~np.isfinite(got)
        if not np.array_equal(got[odd], wanted[odd], equal_nan=True):
            return _first(built, got, wanted, odd & ~_same(got, wanted), "infinity or NaN")
        got, wanted = np.where(odd, 0, got), np.where(odd, 0, wanted)
        return _NEAR[case.compare](case, built, got, wanted, rounding)
    return _WAYS[case.compare](case, built, got, wanted)


def _near(case: Case, built: Built, got: Array, wanted: Array, rounding: Rounding) -> str:
    limit = case.limit if rounding is Rounding.NONE else max(case.limit, case.rounded)
    error = normalised_error(got, wanted)
    if error > limit:
        return _first(built, got, wanted, got != wanted, f"error {error:.3g} > {limit:g}")
    if case.each:
        relative, absolute = NEAR[built.node.dtype]
        if case.relative:
            absolute = TINY
        far = np.abs(got - wanted) > relative * np.abs(wanted) + absolute
        return _first(built, got, wanted, far, "too far") if far.any() else ""
    # One wrong element among many changes the mean only little, so elements are checked too.
    usual = math.sqrt(float(np.mean(wanted**2))) if wanted.size else 0.0
    far = np.abs(got - wanted) > OUTLIER * math.sqrt(limit) * np.maximum(np.abs(wanted), usual)
    return _first(built, got, wanted, far, "single elements too far") if far.any() else ""


def _product(case: Case, built: Built, got: Array, wanted: Array, rounding: Rounding) -> str:
    """Compare each element with the error that rounding of sums and operands allows."""
    bound = product_bound(built, rounding, representable=case.representable)
    far = ~(np.abs(got - wanted) <= bound + TINY) & (got != wanted)
    if not far.any():
        return ""
    at = tuple(np.argwhere(far)[0])
    return _first(built, got, wanted, far, f"farther than {bound[at]:.3g}")


def normalised_error(got: Array, wanted: Array) -> float:
    """The sum of squared differences, divided by the sum of the wanted squares."""
    apart = float(np.sum((got - wanted) ** 2))
    return apart and apart / max(float(np.sum(wanted**2)), 1e-300)


def _exact(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    wrong = ~_same(got, _as_stored(built.node.dtype, wanted))
    return _first(built, got, wanted, wrong, "not equal") if wrong.any() else ""


def _encoded(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """Encoded values may differ by one step of their block, in one value at most."""
    allowed = STEPS[built.node.dtype] * float(np.abs(wanted).max(initial=0))
    apart = float(np.sqrt(np.sum((got - wanted) ** 2)))
    if apart <= allowed:
        return ""
    return _first(built, got, wanted, got != wanted, f"distance {apart:.3g} > {allowed:.3g}")


def _not_finite(case: Case, built: Built, got: Array, wanted: Array) -> str:
    """The result must be infinite or NaN where the reference is, and near it elsewhere."""
    wanted = _as_stored(built.node.dtype, wanted)
    odd, found = ~np.isfinite(wanted), ~np.isfinite(got)
    if (odd != found).any():
        return _first(built, got, wanted, odd != found, "infinity or NaN in other places")
    got, wanted = np.where(odd, 0, got), np.where(odd, 0, wanted)
    return _near(case, built, got, wanted, Rounding.NONE)


def _order(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """Indices must sort the values; indices of equal values may be swapped."""
    if not np.array_equal(np.sort(got, -1), np.broadcast_to(np.arange(got.shape[-1]), got.shape)):
        return "the indices of some row are not a permutation"
    return _same_picks(built, got, wanted, sort=False)


def _set(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """Indices must pick the same values, in any order."""
    ranks = np.sort(got, -1)
    if (np.diff(ranks, axis=-1) == 0).any() or got.min(initial=0) < 0:
        return "some row has an index twice, or a negative index"
    return _same_picks(built, got, wanted, sort=True)


def _same_picks(built: Built, got: Array, wanted: Array, *, sort: bool) -> str:
    x = built.source_values()
    if got.max(initial=0) >= x.shape[-1]:
        return f"index {got.max()} in rows of {x.shape[-1]}"
    found, picked = (np.take_along_axis(x, ids, -1) for ids in (got, wanted))
    if sort:
        found, picked = np.sort(found, -1), np.sort(picked, -1)
    wrong = found != picked
    return _first(None, found, picked, wrong, "other values") if wrong.any() else ""


def _as_stored(dtype: tp.DType, values: Array) -> Array:
    """Round the reference's float64 values to f32, because the result cannot hold more digits."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64) if dtype is tp.F32 else values


def _same(got: Array, wanted: Array) -> Array:
    same: Array = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    return same


def _first(built: Built | None, got: Array, wanted: Array, wrong: Array, problem: str) -> str:
    """Describe the first wrong element, with the elements of the sources at its index."""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    pair = f"{got[at].item()!r}, wanted {wanted[at].item()!r}"
    given = "" if built is None else _given(built, at)
    return f"{problem}; {count} of {got.size} differ, first at {at}: {pair}{given}"


def _given(built: Built, at: tuple[int, ...]) -> str:
    """The elements at an index of sources with the shape of the result, with all digits."""
    node = built.node
    if node.view_of is not None:
        return ""
    texts = []
    for source in node.sources:
        if source.shape == node.shape:
            value = next(reversed(compute(tp.dup(source), built.stored).values()))[at]
            texts.append(str(np.float32(value)) if source.dtype is tp.F32 else repr(value.item()))
    return f" from {' and '.join(texts)}" if texts else ""


_NEAR: dict[str, Callable[[Case, Built, Array, Array, Rounding], str]] = {
    "near": _near,
    "product": _product,
}
_WAYS: dict[str, Callable[[Case, Built, Array, Array], str]] = {
    "exact": _exact,
    "encoded": _encoded,
    "order": _order,
    "set": _set,
    "not_finite": _not_finite,
}
