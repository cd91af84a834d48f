"""`Stream`: the tokens of one text as they come, for threads and for asyncio."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from tensorplug_llm.sampling import Sampled


class Stream:
    """Iterate over the sampled tokens of a text, by `for` or by `async for`, once.

    `finish` is "" until the text ends: then "stop" (by a token that ends texts), "length" (by
    `max_tokens`), "context", "cancelled" or "failed". Iterating raises what the engine failed with.
    """

    def __init__(self, prompt: Sequence[int], cancel: Callable[[], None]) -> None:
        """Made by `Engine.submit`."""
        self.prompt = tuple(prompt)
        self.ids: list[int] = []
        """The tokens chosen so far."""
        self.finish = ""
        self.error: BaseException | None = None
        self.submitted = time.perf_counter()
        self.times: list[float] = []
        """When each token came, on the clock of `time.perf_counter`."""
        self._cancel = cancel
        self._items: deque[Sampled] = deque()
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def cancel(self) -> None:
        """End the text as soon as the running pass is over; nothing happens after its end."""
        self._cancel()

    def result(self) -> list[int]:
        """Wait for the end; return the ids of all tokens."""
        for _ in self:
            pass
        return list(self.ids)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Sampled:
        with self._changed:
            while not self._items and not self.finish:
                self._changed.wait()
            if self._items:
                return self._items.popleft()
        if self.error is not None:
            raise self.error
        raise StopIteration

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Sampled:
        arrived = asyncio.Event()
        while True:
            with self._changed:
                if self._items:
                    return self._items.popleft()
                if self.finish:
                    break
                arrived.clear()
                self._waiting.append((asyncio.get_running_loop(), arrived))
            await arrived.wait()
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    # --- for the engine ----------------------------------------------------------------------

    def put(self, sampled: Sampled) -> None:
        """Add a token."""
        with self._changed:
            self.ids.append(sampled.token)
            self.times.append(time.perf_counter())
            self._items.append(sampled)
            self._wake()

    def end(self, finish: str, error: BaseException | None = None) -> None:
        """Say that no more tokens come, and why."""
        with self._changed:
            self.finish, self.error = finish, error
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        waiting, self._waiting = self._waiting, []
        for loop, arrived in waiting:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(arrived.set)

    def __repr__(self) -> str:
        return f"<Stream {len(self.ids)} tokens, {self.finish or 'running'}>"
