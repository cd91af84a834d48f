"""Rotary position embedding."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import math

import numpy as np

from tensorplug.device import Array, OptionError
from tensorplug_cpu.reference.table import Params, values


@values("rope")
def rope(p: Params, x: Array, positions: Array, factors: Array | None) -> Array:
    """Turn the pairs (first, second) of each head of `x` [batch, tokens, heads, size]."""
    first, second = pairs(p)
    angle = angles(p, positions.reshape(-1), x.shape[1], factors)[None, :, None, :]
    length = magnitude(p)
    cos, sin = length * np.cos(angle), length * np.sin(angle)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def pairs(p: Params) -> tuple[Array, Array]:
    """Indices of the elements that turn together."""
    i, first = np.arange(_count(p)), p["offset"]
    if p["mode"] == "normal":
        return first + 2 * i, first + 2 * i + 1
    return first + i, first + i + len(i)


def angles(p: Params, positions: Array, tokens: int, factors: Array | None) -> Array:
    """The angle of each pair at each token: [tokens, pairs]."""
    i = np.arange(_count(p))
    kind, power = _sectioned(p, i) if p["mode"] not in ("normal", "neox") else (0 * i, i)
    at = positions.reshape(-1, tokens)[kind].T
    angle = at * p["base"] ** (-2.0 * power / p["dims"])
    if factors is not None:
        angle = angle / factors.reshape(-1)[: len(i)]
    if not p["ext_factor"]:
        return p["scale"] * angle
    keep = p["ext_factor"] * _unscaled_share(p, i)
    return p["scale"] * angle * (1 - keep) + angle * keep


def magnitude(p: Params) -> float:
    """What turned pairs are multiplied with; YaRN makes up for the scaled angles."""
    grown = 1 + 0.1 * math.log(1 / p["scale"]) if p["ext_factor"] else 1.0
    return float(p["attn_factor"] * grown)


def _count(p: Params) -> int:
    # In vision mode `dims` is the number of pairs: half of the head, all of which turns.
    return int(p["dims"] if p["mode"] == "vision" else p["dims"] // 2)


def _sectioned(p: Params, i: Array) -> tuple[Array, Array]:
    """Which kind of position (time, height, width, other) each pair takes, and its power."""
    sizes = np.array([*p["sections"], 0, 0, 0, 0][:4])
    if not sizes.sum():
        raise OptionError(f"rope: mode {p['mode']} needs sections, got {p['sections']}")
    within = i % sizes.sum()
    if p["mode"] == "imrope":
        # Time, height and width take turns until a section is used up; the rest is other.
        turn = within % 3
        return np.where(within < 3 * sizes[turn], turn, 3), i
    ends = np.cumsum(sizes)
    kind = np.minimum(np.searchsorted(ends, within, side="right"), 3)
    if p["mode"] == "mrope":
        return kind, i
    # In vision mode each section starts over with the fastest turn.
    return kind, within - (ends - sizes)[kind]


def _unscaled_share(p: Params, i: Array) -> Array:
    """How much of its unscaled angle each pair keeps: fast ones all, slow ones nothing."""
    low = max(0.0, math.floor(_pair_that_turns(p, p["beta_fast"])))
    high = min(p["dims"] - 1.0, math.ceil(_pair_that_turns(p, p["beta_slow"])))
    return 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)


def _pair_that_turns(p: Params, times: float) -> float:
    """The (fractional) pair that turns `times` times within the original context."""
    per_turn = p["original_context"] / (times * 2 * math.pi)
    return float(p["dims"] * math.log(per_turn) / (2 * math.log(p["base"])))
