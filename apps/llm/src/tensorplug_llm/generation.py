"""`Generation`: token ids that continue a prompt, one by one, with timings."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorplug_llm.sampling import Sampled, Sampler, SamplingParams
from tensorplug_llm.session import Session


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and rates of one generation; planning counts into what it delayed."""

    load_s: float
    plan_s: float
    prompt_tokens: int
    prefill_s: float
    first_token_s: float
    generated_tokens: int
    decode_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


class Generation:
    """Iterate to generate. Ends after `tokens` ids, before one that ends the text, or when full.

    `ids` and `finish` ("length", "stop" or "context") can be read at any time.
    """

    def __init__(
        self,
        session: Session,
        prompt: Sequence[int],
        *,
        tokens: int = 128,
        sampler: Sampler | None = None,
    ) -> None:
        """Continue what `session` has read with `prompt` and up to `tokens` more."""
        self.session = session
        self.prompt = list(prompt)
        self.tokens = tokens
        self.sampler = sampler or Sampler(SamplingParams(temperature=0.0))
        self.ids: list[int] = []
        self._text = list(prompt)
        self.sampled: list[Sampled] = []
        """The ids with their log probabilities, see `SamplingParams.logprobs`."""
        self.finish = ""
        self._prefill = self._first = self._decode = 0.0

    def __iter__(self) -> Iterator[int]:
        tokenizer = self.session.model.tokenizer
        start = time.perf_counter()
        logits = self.session.prefill(self.prompt)
        self._prefill = time.perf_counter() - start
        while len(self.ids) < self.tokens:
            # Embedding tables may have rows to spare, which are no tokens.
            known = logits[: tokenizer.vocab_size]
            sampled = self.sampler.next(known, self._text)
            chosen = sampled.token
            self._first = self._first or time.perf_counter() - start
            if chosen in tokenizer.end_of_generation:
                self.finish = "stop"
                return
            self.ids.append(chosen)
            self._text.append(chosen)
            self.sampled.append(sampled)
            yield chosen
            if len(self.ids) == self.tokens:
                break
            if self.session.position == self.session.context:
                self.finish = "context"
                return
            begin = time.perf_counter()
            logits = self.session.decode(chosen)
            self._decode += time.perf_counter() - begin
        self.finish = "length"

    @property
    def timings(self) -> Timings:
        """Timings so far."""
        decoded = max(len(self.ids) - 1, 0)
        return Timings(
            load_s=self.session.model.load_seconds,
            plan_s=self.session.runner.plan_seconds,
            prompt_tokens=len(self.prompt),
            prefill_s=self._prefill,
            first_token_s=self._first,
            generated_tokens=len(self.ids),
            decode_s=self._decode,
            prefill_tokens_per_s=_rate(len(self.prompt), self._prefill),
            decode_tokens_per_s=_rate(decoded, self._decode),
        )


def generate(
    session: Session,
    prompt: Sequence[int],
    *,
    tokens: int = 128,
    sampler: Sampler | None = None,
) -> Iterator[int]:
    """Yield up to `tokens` ids that continue `prompt`, by default the most likely ones."""
    return iter(Generation(session, prompt, tokens=tokens, sampler=sampler))


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
