"""`Front`: the ASGI app before the replicas. A request whose replica dies goes to another one."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ray import exceptions

from tensorplug_ray.serve.replica import Asked, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ATTEMPTS = 4
"""Replicas that are asked, one after the other, before a request fails."""
LARGEST = 4 << 20
"""Bytes of a request."""
KEPT = ("type", "http_version", "method", "scheme", "path", "query_string", "headers")
"""What a replica is told of a request; the rest belongs to this process."""

logger = logging.getLogger("tensorplug_ray.serve")


class Front:
    """Sends each request to a replica, and to another one where that dies before it answers.

    Until the first byte of an answer's body is sent nothing is lost by asking again. An answer that
    was begun ends with an error.
    """

    def __init__(self, replicas: Any) -> None:
        """`replicas` is the handle of a deployment of `Replica`."""
        self._answer = replicas.options(stream=True).answer

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        if body is None:
            await _refuse(send, 413, f"body: is larger than {LARGEST} bytes; send less")
            return
        asked = Asked({name: scope[name] for name in KEPT if name in scope}, body)
        begun = False
        for attempt in range(1, ATTEMPTS + 1):
            held: list[Message] = []
            try:
                async for message in self._answer.remote(asked):
                    # The status waits for the first bytes: it cannot be taken back.
                    held.append(message)
                    if message["type"] == "http.response.body":
                        begun = True
                        for each in held:
                            await send(each)
                        held = []
                return
            except exceptions.RayActorError as error:
                logger.warning("a replica died at attempt %d: %s", attempt, error)
                if begun:
                    raise
        await _refuse(send, 503, f"{ATTEMPTS} replicas died one after the other; ask again later")


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; None where it is too large."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LARGEST:
            return None
    return bytes(body)


async def _refuse(send: Send, status: int, text: str) -> None:
    content = json.dumps(
        {"error": {"message": text, "type": "server_error", "code": None}}
    ).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
