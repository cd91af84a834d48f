"""Answers in parts, to clients that may go away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tensorplug_llm.serve.answers import event
from tensorplug_llm.serve.errors import closing

T = TypeVar("T")


class EventStream:
    """An answer by server-sent events; `close` is called at its end, whatever that is."""

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], patience: float
    ) -> None:
        """A client that does not read for `patience` seconds is given up."""
        self._events = events
        self._close = close
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client has gone."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await unless_gone(receive, self._send_all(send))
        except TimeoutError:
            raise ClientDisconnect from None
        except asyncio.CancelledError:  # the server closes
            await send({"type": "http.response.body", "body": event(closing().body())})
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        async for body in self._events:
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of work, which is cancelled where the client goes. Raises ClientDisconnect."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
