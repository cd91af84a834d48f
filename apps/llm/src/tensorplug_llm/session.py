"""`Session`: one text in its context, token after token."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorplug import DType, Graph
from tensorplug.device import Resource
from tensorplug.errors import OptionError
from tensorplug_llm.cache import pages_of
from tensorplug_llm.runner import Logits, Runner
from tensorplug_llm.step import Reading

if TYPE_CHECKING:
    from tensorplug_llm.model import LanguageModel

MOST_LOGITS = 1 << 25
"""Logits that one run may give where those of all positions are wanted: 128 MiB."""

NONE = np.zeros((0, 0), np.float32)


class Session(Resource):
    """A text of up to `context` tokens: `prefill` reads more of it, `decode` one token."""

    def __init__(
        self, model: "LanguageModel", context: int, kv: DType | None, on_failure: str
    ) -> None:
        """Made by `LanguageModel.session`."""
        pages = pages_of(context)
        self.runner = Runner(
            model,
            pages,
            most=1,
            context=context,
            kv=kv,
            on_failure=on_failure,
            restore=self._read_again,
        )
        super().__init__(model)
        self.model = model
        self.context = context
        self.position = 0
        """Tokens read so far."""
        self._ids: list[int] = []
        """The tokens read so far, for a cache whose device is lost."""
        self._pages = range(pages)

    def check(self, ids: Sequence[int]) -> None:
        """Raise OptionError unless `ids` are tokens of the model and fit the context."""
        self.check_open()
        self.model.check_ids(ids)
        if self.position + len(ids) > self.context:
            used = f", of which {self.position} are used" if self.position else ""
            raise OptionError(
                f"prompt: {len(ids)} tokens do not fit the context of {self.context} tokens{used}; "
                "shorten the prompt, or ask for a larger context: this model can have "
                f"{self.model.hparams.context}"
            )

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Read tokens; return the logits [vocabulary] after the last. Raises OptionError."""
        self.check(ids)
        logits: Logits = self._read(ids)[0]
        return logits

    def decode(self, id: int) -> Logits:
        """Read one token; return the logits [vocabulary] after it. Raises OptionError."""
        self.check((id,))
        logits: Logits = self._run((id,))[0]
        return logits

    def score(self, ids: Sequence[int]) -> Iterator[Logits]:
        """Read tokens; yield the logits of all of them, [tokens, vocabulary] piece by piece."""
        self.check(ids)
        most = MOST_LOGITS // self.model.hparams.vocabulary
        while len(ids):
            size = min(self.runner.shapes.batch(len(ids)), max(most, 1))
            part, ids = ids[:size], ids[size:]
            yield self._run(part, wanted=len(part))

    def rewind(self, position: int = 0) -> None:
        """Forget all tokens from `position` on.

        Recurrent layers know their state after the last token only: a model that has some reads the
        tokens before `position` again.
        """
        if not 0 <= position <= self.position:
            raise OptionError(
                f"rewind: position {position} is not among the {self.position} tokens read"
            )
        kept = self._ids[:position]
        is_state_known = self.runner.states is None or position == self.position
        self.position = position if is_state_known else 0
        del self._ids[self.position :]
        if not is_state_known:
            self._read(kept)

    def decode_graph(self) -> Graph:
        """The graph that reads the next token. Raises OptionError where the context is full."""
        if self.position >= self.context:
            raise OptionError(f"the context of {self.context} tokens is full: no step follows")
        reading = Reading((0,), self.position, self._pages)
        return self.runner.step(self.runner.shapes.of([reading])).graph

    def _read(self, ids: Sequence[int]) -> Logits:
        logits = NONE
        while len(ids):
            size = self.runner.shapes.batch(len(ids))
            part, ids = ids[:size], ids[size:]
            logits = self._run(part)
        return logits

    def _run(self, ids: Sequence[int], wanted: int = 1) -> Logits:
        (logits,) = self.runner.run([Reading(ids, self.position, self._pages, wanted)])
        self.position += len(ids)
        self._ids.extend(ids)
        return logits

    def _read_again(self) -> None:
        """Read all tokens again, after a device was lost with a part of the cache."""
        ids = list(self._ids)
        self.rewind()
        try:
            self._read(ids)
        finally:
            self._ids, self.position = ids, len(ids)

    def _close(self) -> None:
        self.runner.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.position} of {self.context} tokens"
        return f"<Session {self.model.file.path.name}, {state}>"
