"""The rules of sampling: each a function over logits.

Rules before `top_k` change the logits of a whole vocabulary, those after it work on `Candidates`.
The order and the formulas are those of llama.cpp (`common_sampler`, `llama-sampler.cpp`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

COLUMNS = 4096
"""Parts whose greatest logits bound the greatest of a vocabulary from below: see `greatest`."""
FIRST_GUESS = 1024
"""Candidates that rules over whole vocabularies sort at first: seldom are more needed."""


class Candidates(NamedTuple):
    """Tokens that can still be chosen, and their logits; none of them is -inf."""

    ids: Ids
    logits: Floats

    def at(self, places: Ids) -> "Candidates":
        """The candidates at these places, in their order."""
        return Candidates(self.ids[places], self.logits[places])


# --- rules over the logits of a vocabulary --------------------------------------------------------


def add_bias(logits: Logits, bias: Mapping[int, float]) -> Logits:
    """Add a number to the logits of some tokens (OpenAI's API, `logit_bias`)."""
    changed = logits.copy()
    changed[list(bias)] += np.fromiter(bias.values(), np.float32, len(bias))
    return changed


def penalise(
    logits: Logits, recent: Sequence[int], *, repeat: float, presence: float, frequency: float
) -> Logits:
    """Make tokens of the recent text less likely.

    `repeat`: Keskar et al. 2019, arXiv:1909.05858, with negative logits multiplied; `presence` and
    `frequency`: OpenAI's API. A token that occurs `c` times gets `l / repeat` (`l * repeat` where
    `l` is at most 0) `- c * frequency - presence`.
    """
    counts = Counter(recent)
    ids = np.fromiter(counts, np.intp, len(counts))
    times = np.fromiter(counts.values(), np.float32, len(counts))
    old = logits[ids]
    scaled = np.where(old > 0, old / np.float32(repeat), old * np.float32(repeat))
    changed = logits.copy()
    changed[ids] = scaled - times * np.float32(frequency) - np.float32(presence)
    return changed


def forbid(logits: Logits, allowed: npt.NDArray[np.bool_]) -> Logits:
    """Only allowed tokens: constrained decoding, Willard and Louf 2023, arXiv:2307.09702.

    Tokens past the end of `allowed` are forbidden.
    """
    changed = np.full_like(logits, -np.inf)
    size = min(logits.size, allowed.size)
    np.copyto(changed[:size], logits[:size], where=allowed[:size])
    return changed


# --- rules over candidates ------------------------------------------------------------------------


def keep_top_k(logits: Logits, count: int) -> Candidates:
    """The `count` most likely tokens (Fan et al. 2018, arXiv:1805.04833), all where it is 0."""
    ids = greatest(logits, count) if 0 < count < logits.size else np.flatnonzero(logits > -np.inf)
    return Candidates(ids, logits[ids].astype(np.float64))


def keep_typical(found: Candidates, probability: float) -> Candidates:
    """Locally typical sampling: Meister et al. 2022, arXiv:2202.00666.

    The tokens whose information `-log p` is closest to the entropy, the fewest that have more than
    this probability together.
    """
    if probability >= 1 or not found.ids.size:
        return found
    information = log_sum(found.logits) - found.logits
    weights = np.exp(-information)
    entropy = float(weights @ information)
    closeness = -np.abs(information - entropy)
    return found.at(_first_that_reach(weights, closeness, probability, "right"))


def keep_top_p(found: Candidates, probability: float) -> Candidates:
    """Nucleus sampling: Holtzman et al. 2019, arXiv:1904.09751.

    The fewest tokens, the most likely first, that have at least this probability together.
    """
    if probability >= 1 or not found.ids.size:
        return found
    weights = np.exp(found.logits - log_sum(found.logits))
    return found.at(_first_that_reach(weights, found.logits, probability, "left"))


def keep_min_p(found: Candidates, fraction: float) -> Candidates:
    """Drop tokens less likely than this fraction of the most likely: arXiv:2407.01082."""
    if fraction <= 0 or not found.ids.size:
        return found
    least = float(found.logits.max()) + math.log(fraction)
    return found.at(np.flatnonzero(found.logits >= least))


def probabilities(found: Candidates, temperature: float) -> Floats:
    """Softmax of the logits divided by a temperature above 0 (Ackley et al. 1985)."""
    with np.errstate(over="ignore"):  # a temperature near 0 divides into -inf: probability 0
        weights = np.exp((found.logits - found.logits.max()) / temperature)
    return np.asarray(weights / weights.sum(), np.float64)


# --- parts of the rules ---------------------------------------------------------------------------


def greatest(values: npt.NDArray[np.floating], count: int) -> Ids:
    """Places of the `count` greatest values above -inf, the greatest first, lower places first.

    No value is NaN. Whole vocabularies are not sorted: the `count`-th greatest of the maxima of
    COLUMNS parts is a lower bound, and few values reach it.
    """
    rows = values.size // COLUMNS
    least = -np.inf
    if rows > 1 and count <= COLUMNS:
        maxima = values[: rows * COLUMNS].reshape(rows, COLUMNS).max(axis=0)
        least = np.partition(maxima, COLUMNS - count)[COLUMNS - count]
    places = np.flatnonzero(values >= least if least > -np.inf else values > least)
    reached = values[places]
    if places.size > 2 * count:
        least = np.partition(reached, places.size - count)[places.size - count]
        places = places[reached >= least]
        reached = values[places]
    return places[np.argsort(-reached, kind="stable")[:count]]


def log_sum(logits: npt.NDArray[np.floating]) -> float:
    """Logarithm of the sum of `exp(logits)`."""
    largest = logits.max()
    return float(largest) + math.log(float(np.exp(logits - largest).sum(dtype=np.float64)))


def _first_that_reach(weights: Floats, keys: Floats, probability: float, side: str) -> Ids:
    """The fewest places, the greatest keys first, whose weights add up to a probability.

    On the `side` "right" they must exceed it. Rounding may keep the sum below 1: then all places.
    """
    count = min(FIRST_GUESS, keys.size)
    while True:
        places = greatest(keys, count)
        reached = np.cumsum(weights[places])
        needed = int(np.searchsorted(reached, probability, side)) + 1  # type: ignore[call-overload]  # a literal
        if needed <= places.size or count >= keys.size:
            return places[:needed]
        count = min(8 * count, keys.size)
