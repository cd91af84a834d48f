"""`Texts`: the results of one request, in pieces as they come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tensorplug_llm.sampling import Sampled
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.stream import Stream
from tensorplug_llm.tokenizer import Tokenizer

FINISH = {"stop": "stop", "length": "length", "context": "length"}
"""OpenAI's `finish_reason` of what ended a stream."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What follows in a result: text, often none, the tokens that were chosen, and its end."""

    index: int
    text: str
    sampled: Sequence[Sampled] = ()
    finish: str | None = None


class Texts:
    """The results of one request, decoded; iterate once. `cancel` gives back their pages."""

    def __init__(
        self, tokenizer: Tokenizer, streams: Sequence[Stream], stop: Sequence[str]
    ) -> None:
        self.streams = streams
        self.prompt_tokens = 0
        self.tokens = 0
        """Tokens of all results so far."""
        self._tokenizer = tokenizer
        self._stop = stop

    def cancel(self) -> None:
        """End all results that are not complete."""
        for stream in self.streams:
            if not stream.finish:
                stream.cancel()

    def __aiter__(self) -> AsyncIterator[Piece]:
        """The pieces of all results, in the order in which they come."""
        results = [self._pieces(index, stream) for index, stream in enumerate(self.streams)]
        return results[0] if len(results) == 1 else _merged(results)

    async def _pieces(self, index: int, stream: Stream) -> AsyncIterator[Piece]:
        decoder = self._tokenizer.stream(stop=self._stop)
        while ready := await stream.ready():
            text = ""
            for count, sampled in enumerate(ready, 1):
                text += decoder.feed(sampled.token)
                if decoder.stopped:
                    self.tokens += count
                    stream.cancel()
                    yield Piece(index, text, ready[:count], "stop")
                    return
            self.tokens += len(ready)
            yield Piece(index, text, ready)
        if stream.finish not in FINISH:
            raise ServeError(503, "server: is closing; send the request again")
        yield Piece(index, decoder.finish(), (), FINISH[stream.finish])


async def _merged(sources: Sequence[AsyncIterator[Piece]]) -> AsyncIterator[Piece]:
    """The items of several iterators as they come."""
    pending = {asyncio.ensure_future(anext(source)): source for source in sources}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = pending.pop(task)
                try:
                    piece = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(anext(source))] = source
                yield piece
    finally:
        for task in pending:
            task.cancel()
