"""`Texts`: the results of one request, in pieces as they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tensorplug_llm.sampling import Sampled
from tensorplug_llm.serve.calls import Call, CallReader
from tensorplug_llm.serve.errors import closing
from tensorplug_llm.stream import Stream

FINISH = {"stop": "stop", "length": "length", "context": "length"}
"""OpenAI's `finish_reason` of what ended a stream."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What follows in a result: text, often none, calls, the tokens that were chosen, its end."""

    index: int
    text: str
    sampled: Sequence[Sampled] = ()
    finish: str | None = None
    calls: Sequence[Call] = ()
    called: int = 0
    """Calls of the result before these."""


class Texts:
    """The results of one request; iterate once. `cancel` gives back their pages."""

    def __init__(
        self, streams: Sequence[Stream], readers: Callable[[], CallReader] | None = None
    ) -> None:
        """`readers` makes what finds calls in one result."""
        self.streams = streams
        self.tokens = 0
        """Tokens of all results so far."""
        self._readers = readers

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
        reader = None if self._readers is None else self._readers()
        while True:
            sampled, text = await stream.ready()
            finish = None if sampled else FINISH.get(stream.finish)
            if not sampled and finish is None:
                raise closing()
            self.tokens += len(sampled)
            called, calls = 0, list[Call]()
            if reader is not None:
                called = reader.called
                text, calls = reader.feed(text)
                if finish is not None:
                    rest, more = reader.finish()
                    text, calls = text + rest, calls + more
                    finish = "tool_calls" if finish == "stop" and reader.called else finish
            yield Piece(index, text, sampled, finish, calls, called)
            if finish is not None:
                return


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
