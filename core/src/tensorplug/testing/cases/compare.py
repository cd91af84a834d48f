"""How a result is compared with the reference; each way returns what is wrong, or nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug.testing.cases.case import Built, Case

Array = npt.NDArray[Any]

NEAR: dict[tp.DType, tuple[float, float]] = {
    tp.F32: (1e-5, 1e-6),
    tp.F16: (2.0**-10, 1e-6),
    tp.BF16: (2.0**-7, 1e-6),
}
"""Relative and absolute distance of single elements, where a case asks for `each`."""

STEPS: dict[tp.DType, float] = {
    tp.Q4_0: 1 / 8,
    tp.Q4_1: 2 / 15,
    tp.Q5_0: 1 / 16,
    tp.Q5_1: 2 / 31,
    tp.Q8_0: 1 / 127,
    tp.TQ1_0: 1,
    tp.TQ2_0: 1,
    tp.MXFP4: 1 / 2,
    tp.NVFP4: 1 / 3,
    tp.Q8_1: 1 / 127,
    tp.Q8_K: 1 / 127,
    tp.Q1_0: 2,
    tp.Q2_0: 1,
    tp.Q2_K: 2 / 3,
    tp.Q3_K: 1 / 3,
    tp.Q4_K: 2 / 15,
    tp.Q5_K: 2 / 31,
    tp.Q6_K: 1 / 31,
    tp.IQ4_NL: 24 / 113,
    tp.IQ4_XS: 24 / 113,
    **dict.fromkeys((tp.IQ1_S, tp.IQ1_M), 2),
    **dict.fromkeys((tp.IQ2_XXS, tp.IQ2_XS, tp.IQ2_S, tp.IQ3_XXS, tp.IQ3_S), 2),
}
"""Distance of neighbouring values of a block, as a share of its largest one.

Codebooks of signs and magnitudes: a value and its negative.
"""


def difference(case: Case, built: Built, got: Array, wanted: Array) -> str:
    """What is wrong with the values `got`, in a few words; empty where nothing is."""
    if got.shape != wanted.shape:
        return f"shape {got.shape}, wanted {wanted.shape}"
    return _WAYS[case.compare](case, built, got, wanted)


def _near(case: Case, built: Built, got: Array, wanted: Array) -> str:
    wanted = _as_stored(built.node.dtype, wanted)
    odd = ~np.isfinite(wanted) | ~np.isfinite(got)
    if not np.array_equal(got[odd], wanted[odd], equal_nan=True):
        return _first(got, wanted, odd & ~_same(got, wanted), "infinity or NaN")
    got, wanted = np.where(odd, 0, got), np.where(odd, 0, wanted)
    error = normalised_error(got, wanted)
    if error > case.limit:
        return _first(got, wanted, got != wanted, f"error {error:.3g} > {case.limit:g}")
    if case.each:
        relative, absolute = NEAR[built.node.dtype]
        far = np.abs(got - wanted) > relative * np.abs(wanted) + absolute
        return _first(got, wanted, far, "too far") if far.any() else ""
    return ""


def normalised_error(got: Array, wanted: Array) -> float:
    """Sum of squared differences over the sum of squares wanted."""
    apart = float(np.sum((got - wanted) ** 2))
    return apart and apart / max(float(np.sum(wanted**2)), 1e-300)


def _exact(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    wrong = ~_same(got, _as_stored(built.node.dtype, wanted))
    return _first(got, wanted, wrong, "not equal") if wrong.any() else ""


def _encoded(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """No more than one value off by one step of its block."""
    allowed = STEPS[built.node.dtype] * float(np.abs(wanted).max(initial=0))
    apart = float(np.sqrt(np.sum((got - wanted) ** 2)))
    if apart <= allowed:
        return ""
    return _first(got, wanted, got != wanted, f"distance {apart:.3g} > {allowed:.3g}")


def _order(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """The same values in order; equal ones may have changed places."""
    if not np.array_equal(np.sort(got, -1), np.broadcast_to(np.arange(got.shape[-1]), got.shape)):
        return "some row is no order of its indices"
    return _same_picks(built, got, wanted, sort=False)


def _set(_case: Case, built: Built, got: Array, wanted: Array) -> str:
    """The same values, in any order."""
    ranks = np.sort(got, -1)
    if (np.diff(ranks, axis=-1) == 0).any() or got.min(initial=0) < 0:
        return "some row names an index twice, or a negative one"
    return _same_picks(built, got, wanted, sort=True)


def _same_picks(built: Built, got: Array, wanted: Array, *, sort: bool) -> str:
    x = built.source_values()
    if got.max(initial=0) >= x.shape[-1]:
        return f"index {got.max()} in rows of {x.shape[-1]}"
    found, picked = (np.take_along_axis(x, ids, -1) for ids in (got, wanted))
    if sort:
        found, picked = np.sort(found, -1), np.sort(picked, -1)
    wrong = found != picked
    return _first(found, picked, wrong, "other values") if wrong.any() else ""


def _as_stored(dtype: tp.DType, values: Array) -> Array:
    """The reference keeps f32 as float64; what an f32 cannot hold it cannot get."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64) if dtype is tp.F32 else values


def _same(got: Array, wanted: Array) -> Array:
    same: Array = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    return same


def _first(got: Array, wanted: Array, wrong: Array, problem: str) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    pair = f"{got[at].item()!r}, wanted {wanted[at].item()!r}"
    return f"{problem}; {count} of {got.size} differ, first at {at}: {pair}"


_WAYS: dict[str, Callable[[Case, Built, Array, Array], str]] = {
    "near": _near,
    "exact": _exact,
    "encoded": _encoded,
    "order": _order,
    "set": _set,
}
