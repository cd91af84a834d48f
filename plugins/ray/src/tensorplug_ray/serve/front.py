"""`Front`: the ASGI app before the replicas. A request whose replica dies goes to another one."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ray import exceptions

from tensorplug_ray.serve.replica import FAILED, Asked, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ATTEMPTS = 4
"""Replicas that may die, one after the other, before a request fails."""
PATIENCE, PAUSE = 60.0, 0.5
"""Seconds for which a request asks again after the first failed engine, and between attempts."""
LARGEST = 4 << 20
"""Bytes of a request."""
KEPT = ("type", "http_version", "method", "scheme", "path", "query_string", "headers")
"""What a replica is told of a request; the rest belongs to this process."""

logger = logging.getLogger("tensorplug_ray.serve")


class Front:
    """Sends each request to a replica, and to another one where that dies before it answers.

    Until the first byte of an answer's body is sent nothing is lost by asking again. An answer that
    was begun ends with an error. A request that comes after a replica's engine failed goes to
    another replica; the one on which it failed does not, as it may be the reason.
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
        deaths, until = 0, float("inf")
        while deaths < ATTEMPTS:
            try:
                if await self._answered(asked, send):
                    return
            except exceptions.RayActorError as error:
                deaths += 1
                logger.warning("replica %d of this request died: %s", deaths, error)
                continue
            until = min(until, time.monotonic() + PATIENCE)
            if time.monotonic() >= until:
                break
            await asyncio.sleep(PAUSE)  # Ray Serve replaces a replica whose engine failed
        await _refuse(send, 503, "all replicas that were asked have failed; ask again later")

    async def _answered(self, asked: Asked, send: Send) -> bool:
        """Send what a replica answers; False where its engine failed before.

        Raises RayActorError where it died and nothing of the body was sent, else RuntimeError.
        """
        held: list[Message] = []
        begun = False
        try:
            async for message in self._answer.remote(asked):
                if message["type"] == FAILED:
                    return False
                # The status waits for the first bytes: it cannot be taken back.
                held.append(message)
                if message["type"] == "http.response.body":
                    begun = True
                    for each in held:
                        await send(each)
                    held = []
        except exceptions.RayActorError as error:
            if begun:
                raise RuntimeError("the replica died while it answered") from error
            raise
        return True


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
