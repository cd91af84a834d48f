"""`Sampler`: the next token out of a model's logits."""

import math

import numpy as np
import numpy.typing as npt

from tensorplug.errors import OptionError, TensorplugError

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

FIRST_GUESS = 1024
"""Candidates that `top_p` sorts at first: it seldom needs more, and sorting all is slow."""


class Sampler:
    """Draws tokens from logits: top_k, top_p, min_p, temperature, then the draw, as llama.cpp.

    Equal seeds and logits give equal tokens. Not to be shared between threads.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Take the settings; the defaults take the likeliest token. Raises OptionError.

        Above temperature 0: the `top_k` likeliest remain (0: all), of these the likeliest that
        together reach the probability `top_p`, of these the ones at least `min_p` times as likely
        as the likeliest. Without a seed every sampler draws differently.
        """
        _check("temperature", temperature, low=0.0)
        _check("top_k", top_k, low=0)
        _check("top_p", top_p, low=0.0, high=1.0)
        _check("min_p", min_p, low=0.0, high=1.0)
        _check("seed", seed or 0, low=0)
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self.seed = seed
        self._random = np.random.default_rng(seed)

    def sample(self, logits: npt.ArrayLike) -> int:
        """Return a token id. Logits: [vocabulary], -inf for what must not come.

        Raises TensorplugError where none is the greatest of them.
        """
        ids, probabilities = self.distribution(logits)
        if ids.size == 1:
            return int(ids[0])
        place = int(np.searchsorted(np.cumsum(probabilities), self._random.random(), "right"))
        return int(ids[min(place, ids.size - 1)])  # the sum may fall short of 1 by a rounding

    def distribution(self, logits: npt.ArrayLike) -> tuple[Ids, Floats]:
        """Return the ids that may be drawn and their probabilities; otherwise like `sample`."""
        values = np.asarray(logits)
        best = int(np.argmax(values)) if values.ndim == 1 and values.size else -1
        if best < 0 or not np.isfinite(values[best]):  # argmax finds NaN before any number
            raise TensorplugError(
                f"sampling: logits of shape {list(values.shape)} have no greatest number; the "
                "model file is damaged, or a device computed wrong: try another --device"
            )
        if self.temperature == 0.0:
            return np.array([best]), np.ones(1)
        ids, kept = self._filter(values.astype(np.float64))
        with np.errstate(over="ignore"):  # a temperature near 0 divides into -inf: probability 0
            return ids, _softmax((kept - kept.max()) / self.temperature)

    def _filter(self, logits: Floats) -> tuple[Ids, Floats]:
        ids = np.arange(logits.size)
        if 0 < self.top_k < logits.size:
            ids = _likeliest(logits, self.top_k)
        if self.top_p < 1.0:
            ids = ids[_nucleus(logits[ids], self.top_p)]
        if self.min_p > 0.0:
            ids = ids[logits[ids] >= logits.max() + math.log(self.min_p)]
        return ids, logits[ids]

    def __repr__(self) -> str:
        settings = ("temperature", "top_k", "top_p", "min_p", "seed")
        return f"<Sampler {', '.join(f'{name} {getattr(self, name)}' for name in settings)}>"


def _likeliest(logits: Floats, count: int) -> Ids:
    """Return the ids of the greatest, the greatest first, lower ids first among equals."""
    least = np.partition(logits, logits.size - count)[logits.size - count]
    candidates = np.flatnonzero(logits >= least)
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def _nucleus(logits: Floats, probability: float) -> Ids:
    """Return the fewest ids, the likeliest first, that together are at least this probable."""
    weights = np.exp(logits - logits.max())
    wanted = probability * weights.sum()
    count = FIRST_GUESS
    while True:
        ids = _likeliest(logits, min(count, logits.size))
        reached = np.cumsum(weights[ids])
        if reached[-1] >= wanted or count >= logits.size:
            return ids[: int(np.searchsorted(reached, wanted)) + 1]
        count *= 8


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(), np.float64)


def _check(name: str, value: float, low: float, high: float = math.inf) -> None:
    if math.isfinite(value) and low <= value <= high:
        return
    wanted = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
    raise OptionError(f"sampling: {name} is {value}; give a number {wanted}")
