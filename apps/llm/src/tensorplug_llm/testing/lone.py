"""`LoneText`: one text read step by step without an engine, to compare others with."""

from collections.abc import Iterator, Sequence

import numpy as np

from tensorplug import DType
from tensorplug.device import Resource
from tensorplug_llm.cache import pages_of
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.runner import Logits, Runner
from tensorplug_llm.step import Reading


class LoneText(Resource):
    """A text of up to `context` tokens: `prefill` reads more of it, `decode` one token.

    Each returns logits, f32. The tokens lie in the first pages of a cache that no other text uses.
    """

    def __init__(
        self, model: LanguageModel, context: int | None = None, *, kv: DType | None = None
    ) -> None:
        """Begin a text; `kv` is the element type of the cache. Raises OptionError, OutOfMemory."""
        self.context = model.context_of(context)
        pages = pages_of(self.context)
        self.runner = Runner(
            model,
            pages,
            most=1,
            context=self.context,
            kv=kv,
            on_failure="raise",
            restore=lambda: None,
        )
        super().__init__(model)
        self.model = model
        self._ids: list[int] = []
        self._pages = range(pages)

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Read tokens; return the logits [vocabulary] after the last."""
        *_, last = (self._run(part) for part in self._parts(ids))
        logits: Logits = last[0]
        return logits

    def decode(self, id: int) -> Logits:
        """Read one token; return the logits [vocabulary] after it."""
        logits: Logits = self._run((id,))[0]
        return logits

    def score(self, ids: Sequence[int]) -> Logits:
        """Read tokens; return the logits of all of them, [tokens, vocabulary]."""
        return np.concatenate([self._run(part, len(part)) for part in self._parts(ids)])

    @property
    def position(self) -> int:
        """Tokens read so far."""
        return len(self._ids)

    def rewind(self, position: int = 0) -> None:
        """Forget all tokens from `position` on.

        Recurrent layers know only their state after the last token: the tokens before `position`
        are read again.
        """
        kept = self._ids[:position]
        has_state = self.runner.states is not None
        self._ids = [] if has_state else kept
        if has_state and kept:
            self.prefill(kept)

    def continued(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Read a prompt; return up to `tokens` most likely tokens, read one by one.

        Ends before a token that ends the text, and where the context is full.
        """
        tokenizer = self.model.tokenizer
        logits = self.prefill(prompt)
        found: list[int] = []
        while True:
            token = int(logits[: tokenizer.vocab_size].argmax())
            if token in tokenizer.end_of_generation:
                return found
            found.append(token)
            if len(found) == tokens or self.position == self.context:
                return found
            logits = self.decode(token)

    def _parts(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """The tokens of each pass."""
        while len(ids):
            size = self.runner.shapes.batch(len(ids))
            yield ids[:size]
            ids = ids[size:]

    def _run(self, ids: Sequence[int], wanted: int = 1) -> Logits:
        (logits,) = self.runner.run([Reading(ids, self.position, self._pages, wanted)])
        self._ids += ids
        return logits

    def _close(self) -> None:
        self.runner.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.position} of {self.context} tokens"
        return f"<LoneText {self.model.file.path.name}, {state}>"
