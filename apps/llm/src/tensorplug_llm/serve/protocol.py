"""`Protocol`: HTTP/1.1 on a connection, by uvicorn, with an answer to what cannot be read."""

import asyncio
import json
import sys
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.limits import LINGER

UNREADABLE = ServeError(
    400, "request: is not HTTP/1.1, or its headers are too long; send a valid request"
)


CONNECTIONS = 4096
"""Connections at once; fewer where they would be over half of the files that the process may open,
since a connection that it cannot accept is tried again and again."""


class Protocol(H11Protocol):
    """Closes connections without requests, and answers requests that cannot be read.

    uvicorn closes connections after their requests only, never those whose first request does not
    come. After a request that cannot be read this reads on without looking at what comes: uvicorn
    closes the connection at once, which what the client still sends then resets, and the answer may
    be lost.
    """

    _is_refused = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > (most := _most_connections()):
            self._is_refused = True
            transport.write(
                _answer(
                    ServeError(503, f"server: has {most} connections already; connect again later")
                )
            )
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._waiting is not None:
            self._waiting.cancel()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        """Close the connection later unless the head of a request comes."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(self.timeout_keep_alive, self._close_idle)

    def _close_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        self._is_refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # its body cannot be read
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(_answer(UNREADABLE))
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)


def _most_connections() -> int:
    if sys.platform == "win32":  # has no such limit
        return CONNECTIONS
    import resource  # noqa: PLC0415 - Windows has none

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 2)


def _answer(error: ServeError) -> bytes:
    body = json.dumps(error.body()).encode()
    lines = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
