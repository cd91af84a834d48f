"""`Session`: one text in its context, token after token."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import DType, Graph, Results, Scheduler
from tensorplug.device import Resource
from tensorplug.errors import OptionError
from tensorplug_llm.arch import Pass
from tensorplug_llm.kv_cache import KVCache, reaches
from tensorplug_llm.step import Shape, Step

if TYPE_CHECKING:
    from tensorplug_llm.model import LanguageModel

BATCHES = (1, 2, 4, 6, 8, 10, 12, 14, *(n << e for e in range(1, 6) for n in range(8, 16)), 512)
"""Tokens that one run computes: even numbers up to 16, then eight sizes for each power of two.

Longer prompts run in pieces. Shorter ones are padded to the next size: from 8 tokens on by an
eighth at most, below by one token.
"""

MOST_LOGITS = 1 << 25
"""Logits that one run may give where those of all positions are wanted: 128 MiB."""

Logits = npt.NDArray[np.float32]


def pieces(count: int, sizes: Sequence[int]) -> Iterator[int]:
    """Cut `count` tokens into batches of ascending `sizes`: the last one holds the rest."""
    while count > 0:
        size = next((size for size in sizes if size >= count), sizes[-1])
        yield size
        count -= size


class Session(Resource):
    """A text of up to `context` tokens: `prefill` reads more of it, `decode` one token."""

    def __init__(
        self, model: "LanguageModel", context: int, kv: DType | None, on_failure: str
    ) -> None:
        """Made by `LanguageModel.session`."""
        hp = model.hparams
        layers = model.placement.layers
        homes = [backend.buffer_type for backend in layers]
        types = {b.buffer_type: kv or (tp.F16 if b.prefers_f16 else tp.F32) for b in layers}
        self.scheduler = Scheduler(model.backends, on_failure=on_failure)
        self.cache = KVCache((hp.key_row, hp.value_row), context, homes, types)
        # The model closes what is made from it: only now is this whole.
        super().__init__(model)
        self.model = model
        self.context = context
        self.position = 0
        """Tokens read so far."""
        self.plan_seconds = 0.0
        """Time spent on building and planning graphs so far."""
        self._ids: list[int] = []
        """The tokens read so far, for a cache whose device is lost."""
        self._reaches = reaches(context)
        self._steps: dict[Shape, Step] = {}
        self.scheduler.add_sources(model.sources())
        self.scheduler.add_states(
            (*self.cache.keys.values(), *self.cache.values.values()), self._read_again
        )

    def check(self, ids: Sequence[int]) -> None:
        """Raise OptionError unless `ids` are tokens of the model and fit the context."""
        self.check_open()
        if not len(ids):
            raise OptionError("prompt: has no tokens; give at least one")
        if self.position + len(ids) > self.context:
            used = f", of which {self.position} are used" if self.position else ""
            raise OptionError(
                f"prompt: {len(ids)} tokens do not fit the context of {self.context} tokens{used}; "
                "shorten the prompt, or ask for a larger context: this model can have "
                f"{self.model.hparams.context}"
            )
        size = self.model.hparams.vocabulary
        if min(ids) < 0 or max(ids) >= size:
            raise OptionError(
                f"prompt: has token ids from {min(ids)} to {max(ids)}, and this model knows 0 to "
                f"{size - 1}"
            )

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Read tokens; return the logits [vocabulary] after the last. Raises OptionError."""
        self.check(ids)
        for size in pieces(len(ids), BATCHES):
            part, ids = ids[:size], ids[size:]
            results, step = self._run(part, size)
        return self._read(results, step, 0)

    def decode(self, id: int) -> Logits:
        """Read one token; return the logits [vocabulary] after it. Raises OptionError."""
        self.check((id,))
        return self._read(*self._run((id,), 1), 0)

    def score(self, ids: Sequence[int]) -> Iterator[Logits]:
        """Read tokens; yield the logits of all of them, [tokens, vocabulary] piece by piece."""
        self.check(ids)
        most = MOST_LOGITS // self.model.hparams.vocabulary
        sizes = [size for size in BATCHES if size <= max(most, 1)]
        for size in pieces(len(ids), sizes):
            part, ids = ids[:size], ids[size:]
            yield self._read(*self._run(part, size, all_logits=True), slice(len(part)))

    def rewind(self, position: int = 0) -> None:
        """Forget all tokens from `position` on."""
        if not 0 <= position <= self.position:
            raise OptionError(
                f"rewind: position {position} is not among the {self.position} tokens read"
            )
        self.position = position
        del self._ids[position:]

    def prepare(self, tokens: int, seen: int) -> None:
        """Plan and try out all graphs that read batches of `tokens` until `seen` are read.

        The cache keeps what it holds: the trial writes padding.
        """
        for reach in self._reaches:
            if reach >= min(tokens, seen):
                self._step(tokens, reach, all_logits=False).run((), 0)
            if reach >= seen:
                break

    def decode_graph(self) -> Graph:
        """The graph that reads the next token. Raises OptionError where the context is full."""
        if self.position >= self.context:
            raise OptionError(f"the context of {self.context} tokens is full: no step follows")
        return self._step(1, self.position + 1, all_logits=False).graph

    def _run(
        self, ids: Sequence[int], size: int, *, all_logits: bool = False
    ) -> tuple[Results, Step]:
        step = self._step(size, self.position + len(ids), all_logits=all_logits)
        results = step.run(ids, self.position)
        self.position += len(ids)
        self._ids.extend(ids)
        return results, step

    def _read_again(self) -> None:
        """Fill the cache anew with the tokens read so far."""
        ids = rest = list(self._ids)
        self.rewind()
        try:
            for size in pieces(len(ids), BATCHES):
                part, rest = rest[:size], rest[size:]
                self._run(part, size)
        finally:
            self._ids, self.position = ids, len(ids)

    def _read(self, results: Results, step: Step, rows: int | slice) -> Logits:
        logits: Logits = results[step.logits][rows]
        return logits

    def _step(self, tokens: int, seen: int, *, all_logits: bool) -> Step:
        reach = next(reach for reach in self._reaches if reach >= seen)
        shape = Shape(tokens, reach, all_logits)
        step = self._steps.get(shape)
        if step is None:
            start = time.perf_counter()
            step = self._steps[shape] = self._plan(shape)
            self.plan_seconds += time.perf_counter() - start
        return step

    def _plan(self, shape: Shape) -> Step:
        model = self.model
        window = model.hparams.window if model.hparams.local_layers else 0
        step = Step(shape, window=window, padding_row=self.cache.padding_row)
        building = Pass(model.hparams, model.weights.tensors, self.cache, step.inputs, shape.reach)
        step.plan(model.architecture.forward, building, self.scheduler)
        return step

    def _close(self) -> None:
        for step in self._steps.values():
            step.close()
        self._steps.clear()
        self.scheduler.close(force=True)
        self.cache.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.position} of {self.context} tokens"
        return f"<Session {self.model.file.path.name}, {state}>"
