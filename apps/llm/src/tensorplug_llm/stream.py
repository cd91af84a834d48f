"""`Stream`: the tokens of one text as they come, for threads and for asyncio."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tensorplug_llm.sampling import Sampled

if TYPE_CHECKING:
    import asyncio


class Wakes:
    """Wakes what waits in event loops, by one call for each loop after a pass of the engine."""

    def __init__(self) -> None:
        self._due: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, waiter: "asyncio.Future[None]") -> None:
        """Wake `waiter` by the next `send`."""
        self._due.setdefault(waiter.get_loop(), []).append(waiter)

    def send(self) -> None:
        """Wake all waiters that were added."""
        due, self._due = self._due, {}
        for loop, waiters in due.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_wake, waiters)


def _nothing() -> None:
    pass


def _wake(waiters: "Sequence[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Stream:
    """Iterate over the sampled tokens of a text, by `for` or by `async for`, once.

    `finish` is "" until the text ends: then "stop" (by a token that ends texts or a stop string),
    "length" (by `max_tokens`), "context", "cancelled" or "failed". Iterating raises what the engine
    failed with.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        cancel: Callable[[], None],
        wakes: Wakes,
        compute: Callable[[], object] | None = None,
    ) -> None:
        """Made by `Engine.submit`; the engine calls `wakes.send` after each pass.

        With `compute` a reader that finds no token calls it, and waits for no other thread.
        """
        self.prompt = tuple(prompt)
        self.ids: list[int] = []
        """The tokens chosen so far."""
        self.finish = ""
        self.error: BaseException | None = None
        self._origin: TracebackType | None = None
        self.submitted = time.perf_counter()
        self.times: list[float] = []
        """When each token came, on the clock of `time.perf_counter`."""
        self._cancel = cancel
        self._compute = compute
        self._items: deque[Sampled] = deque()
        self._texts: list[str] = []
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._wakes = wakes
        self._waiting: list[asyncio.Future[None]] = []

    def cancel(self) -> None:
        """End the text as soon as the running pass is over; nothing happens after its end."""
        self._cancel()

    def result(self) -> list[int]:
        """Wait for the end; return the ids of all tokens.

        Nothing wakes this thread before, so that it takes no time from those that compute.
        """
        if self._compute is None:
            self._ended.wait()
        for _ in self:
            pass
        return list(self.ids)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Sampled:
        self._await()
        if self._items:
            return self._items.popleft()
        raise StopIteration

    def take(self) -> tuple[list[Sampled], str]:
        """What `ready` returns, for threads."""
        self._await()
        return self._taken()

    def pieces(self) -> Iterator[tuple[list[Sampled], str]]:
        """What `take` returns, until the text has ended."""
        sampled, piece = self.take()
        while sampled:
            yield sampled, piece
            sampled, piece = self.take()
        yield [], piece

    def _await(self) -> None:
        """Wait until there are tokens or the text has ended, as `_arrival` does."""
        while self._compute is not None and not self._items and not self.finish:
            self._compute()
        with self._changed:
            while not self._items and not self.finish:
                self._changed.wait()
            if self._items:
                return
        self._check()

    def _check(self) -> None:
        """Raise what the text failed with, without the frames of those who raised it before."""
        if self.error is not None:
            raise self.error.with_traceback(self._origin)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Sampled:
        await self._arrival()
        if self._items:
            return self._items.popleft()
        raise StopAsyncIteration

    async def ready(self) -> tuple[list[Sampled], str]:
        """Wait for tokens; return all that have come with the characters that they complete.

        There are none at the end of the text, only characters that were held back until then.
        """
        await self._arrival()
        return self._taken()

    def _taken(self) -> tuple[list[Sampled], str]:
        with self._changed:
            found, text = list(self._items), "".join(self._texts)
            self._items.clear()
            self._texts.clear()
        return found, text

    async def _arrival(self) -> None:
        """Wait until there are tokens or the text has ended."""
        import asyncio  # noqa: PLC0415 - takes 20 ms, and threads need none of it

        while self._compute is not None and not self._items and not self.finish:
            self._compute()
            await asyncio.sleep(0)
        while True:
            with self._changed:
                if self._items:
                    return
                if self.finish:
                    break
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
            await waiter
        self._check()

    # --- for the engine ----------------------------------------------------------------------

    def put(self, sampled: Sampled, text: str) -> None:
        """Add a token and the characters that it completes."""
        with self._changed:
            self._texts.append(text)
            self.ids.append(sampled.token)
            self.times.append(time.perf_counter())
            self._items.append(sampled)
            self._wake()

    def end(self, finish: str, error: BaseException | None = None, *, text: str = "") -> None:
        """Say that no more tokens come, and why, with the characters that were held back."""
        with self._changed:
            self._texts.append(text)
            self.finish, self.error = finish, error
            self._origin = None if error is None else error.__traceback__
            self._cancel = _nothing  # the text and what it follows are not needed any more
            self._wake()
            self._ended.set()

    def _wake(self) -> None:
        self._changed.notify_all()
        for waiter in self._waiting:
            self._wakes.add(waiter)
        self._waiting.clear()

    def __repr__(self) -> str:
        return f"<Stream {len(self.ids)} tokens, {self.finish or 'running'}>"
