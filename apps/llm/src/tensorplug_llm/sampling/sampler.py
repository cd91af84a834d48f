"""`Sampler`: chooses the tokens of one text."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tensorplug.errors import OptionError, TensorplugError
from tensorplug_llm.sampling import rules
from tensorplug_llm.sampling.params import SamplingParams
from tensorplug_llm.sampling.rules import Candidates, Floats, Logits


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token.

    The log probabilities, natural logarithms, are those of the model's own logits, before any
    rule, as llama.cpp's server reports them. They are there where `SamplingParams.logprobs` is.
    """

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """The most likely tokens, the most likely first."""


class Constraint(Protocol):
    """What a text must follow, see `Grammars`."""

    def allowed(self) -> npt.NDArray[np.bool_]: ...
    def accept(self, token: int) -> None: ...


class Sampler:
    """Chooses the tokens of one text by its parameters, with a random generator of its own.

    Equal seeds, logits and texts give equal tokens. A sampler belongs to one thread at a time.
    """

    def __init__(
        self, params: SamplingParams, *, index: int = 0, constraint: Constraint | None = None
    ) -> None:
        """`index` numbers the results of one prompt: result `i` draws with the seed `seed + i`.

        Parameters with a schema or a grammar need a constraint of `Grammars`, for this text only.
        """
        constrained = params.json_schema is not None or params.grammar is not None
        if constrained and constraint is None:
            raise OptionError(
                "sampling: json_schema and grammar need a constraint; take one of "
                "Grammars(tokenizer)"
            )
        self.params = params
        self.index = index
        self._constraint = constraint
        self._random = random.Random(None if params.seed is None else params.seed + index)

    def next(self, logits: Logits, history: Sequence[int] = ()) -> Sampled:
        """Choose the token that follows `history`: the prompt and all tokens chosen so far.

        `logits`: f32 [vocabulary], -inf for tokens that must not come; they are left as they are.
        Raises TensorplugError where none of them is the greatest, OptionError for a `logit_bias`
        of tokens that the vocabulary does not have.
        """
        _check(logits)
        changed = self._changed(logits, history)
        if self._is_greedy:
            token = int(changed.argmax())
            _check_allowed(possible=bool(changed[token] > -np.inf))
        else:
            found, weights = self._distribution(rules.keep_top_k(changed, self.params.top_k))
            token = int(found.ids[self._draw(weights)])
        if self._constraint is not None:
            self._constraint.accept(token)
        return self._report(logits, token)

    @property
    def needed(self) -> int:
        """How many of the greatest logits are enough for `choose`; 0: `next` needs all."""
        params = self.params
        changes = params.logit_bias or params.penalises or self._constraint is not None
        if changes or params.logprobs is not None:
            return 0
        return 1 if self._is_greedy else params.top_k

    def choose(self, ids: npt.NDArray[np.integer], logits: Logits) -> Sampled:
        """Do what `next` does, by the greatest logits and their ids in any order.

        There are at least as many as `needed`. Raises TensorplugError.
        """
        _check(logits)
        order = np.lexsort((ids, -logits))[: self.needed]
        found = rules.Candidates(ids[order].astype(np.intp), logits[order].astype(np.float64))
        if self._is_greedy:
            return Sampled(int(found.ids[0]))
        found, weights = self._distribution(found.at(np.flatnonzero(found.logits > -np.inf)))
        return Sampled(int(found.ids[self._draw(weights)]))

    @property
    def _is_greedy(self) -> bool:
        return self.params.temperature == 0 and self.params.typical_p >= 1

    def distribution(
        self, logits: Logits, history: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """The ids that `next` may choose and their probabilities; otherwise like `next`."""
        _check(logits)
        changed = self._changed(logits, history)
        found, weights = self._distribution(rules.keep_top_k(changed, self.params.top_k))
        return found.ids.tolist(), weights.tolist()

    def _changed(self, logits: Logits, history: Sequence[int]) -> Logits:
        """The logits with bias, penalties and constraint."""
        params = self.params
        if params.logit_bias:
            check_biases(params, logits.size)
            logits = rules.add_bias(logits, params.logit_bias)
        if params.penalises and history:
            last = params.repeat_last_n
            logits = rules.penalise(
                logits,
                history[-last:] if last > 0 else history,
                repeat=params.repeat_penalty,
                presence=params.presence_penalty,
                frequency=params.frequency_penalty,
            )
        if self._constraint is not None:
            logits = rules.forbid(logits, self._constraint.allowed())
        return logits

    def _distribution(self, found: Candidates) -> tuple[Candidates, Floats]:
        """What is left of the most likely tokens, and their probabilities."""
        params = self.params
        found = rules.keep_typical(found, params.typical_p)
        found = rules.keep_top_p(found, params.top_p)
        found = rules.keep_min_p(found, params.min_p)
        _check_allowed(possible=found.ids.size > 0)
        if params.temperature == 0:
            best = found.logits.argmax()
            return found.at(np.array([best])), np.ones(1)
        return found, rules.probabilities(found, params.temperature)

    def _draw(self, weights: Floats) -> int:
        if weights.size == 1:
            return 0
        sums = np.cumsum(weights)
        place = int(np.searchsorted(sums, self._random.random(), "right"))
        return min(place, weights.size - 1)  # the sum may fall short of 1 by a rounding

    def _report(self, logits: Logits, token: int) -> Sampled:
        if self.params.logprobs is None:
            return Sampled(token)
        total = rules.log_sum(logits)
        top = rules.greatest(logits, self.params.logprobs) if self.params.logprobs else ()
        return Sampled(
            token,
            float(logits[token]) - total,
            tuple((int(id), float(logits[id]) - total) for id in top),
        )

    def __repr__(self) -> str:
        return f"<Sampler {self.params}, result {self.index}>"


def _check(logits: Logits) -> None:
    largest = logits.max() if logits.ndim == 1 and logits.size else np.nan  # NaN where one is NaN
    if not np.isfinite(largest):
        raise TensorplugError(
            f"sampling: logits of shape {list(logits.shape)} have no greatest number; the model "
            "file is damaged, or a device computed wrong: try another --device"
        )


def _check_allowed(*, possible: bool) -> None:
    if not possible:
        raise TensorplugError(
            "sampling: no token is allowed: logit_bias, or it and the grammar together, forbid "
            "all of them; allow at least one"
        )


def check_biases(params: SamplingParams, size: int) -> None:
    """Refuse a `logit_bias` for tokens that a vocabulary of `size` does not have."""
    largest = max(params.logit_bias, default=0)
    if largest >= size:
        raise OptionError(
            f"sampling: logit_bias names token {largest}, and this model knows 0 to {size - 1}"
        )
