"""`Guard`: what holds for every request: the key, limits, refusals as JSON, a line in the log."""

import asyncio
import json
import logging
import re
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorplug.errors import FormatError, OptionError, TensorplugError
from tensorplug_llm.engine import QueueFull
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.serve.errors import RETRY_AFTER, ServeError, closing
from tensorplug_llm.serve.limits import LINGER, Key, Limits, check_length
from tensorplug_llm.serve.logs import log
from tensorplug_llm.serve.metrics import Metrics
from tensorplug_llm.serve.page import FOLDER

RECORD = "tensorplug_llm.record"
"""Key in the scope of a request under which its `Record` is."""
WITHOUT_KEY = ("/", "/health")
PROMPTS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/tokenize": "content",
    "/v1/embeddings": "input",
    "/v1/rerank": "documents",
}
"""Parameters that can have too many tokens, by path."""
CONSTRAINTS = {"json_schema": "response_format", "grammar": "tools"}
"""Parameters of requests by those of sampling that are made of them."""
GONE = 499
"""Status in logs of requests whose clients went away."""
SMALL = 1 << 16
"""Bytes of a body that is read even if its request is refused, so that the connection lives."""


@dataclass(slots=True)
class Record:
    """What the log says of a request."""

    status: int = GONE
    route: str | None = None
    """What stands for the path where the path has parts that clients choose."""
    model: str | None = None
    prompt_tokens: int = 0
    tokens: int = 0


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, limits: Limits, key: Key, metrics: Metrics) -> None:
        self._app = app
        self._limits = limits
        self._key = key
        self._metrics = metrics
        self._open = 0
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        record = scope[RECORD] = Record()
        start = time.perf_counter()
        self._count += 1
        number = self._count
        started, left = False, scope["method"] == "POST"

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                record.status, started = message["status"], True
            await send(message)

        async def receiving() -> Message:
            nonlocal left
            message = await receive()
            left = left and bool(message.get("more_body"))
            return message

        try:
            await self._answer(scope, receiving, sending)
        except ClientDisconnect:
            pass
        except (
            asyncio.CancelledError
        ):  # of uvicorn, which closes when it has cancelled all requests
            if not started:
                await _refuse(closing(), scope, sending, None)
        except Exception as error:  # noqa: BLE001 - one broken request must not end the server
            refusal = refusal_of(error, scope["path"])
            if refusal.status >= 500:
                log_failure("failure", error, number=number)
            if not started:
                await _refuse(refusal, scope, sending, receive if left else None)
        finally:
            path = record.route or (scope["path"] if "endpoint" in scope else "other")
            self._metrics.requests.labels(path, str(record.status)).inc()
            log(
                "request",
                number=number,
                method=scope["method"],
                path=path,
                status=record.status,
                seconds=round(time.perf_counter() - start, 4),
                model=record.model,
                prompt_tokens=record.prompt_tokens,
                generated_tokens=record.tokens,
            )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if not (scope["path"] in WITHOUT_KEY or scope["path"].startswith(FOLDER)):
            self._key.check(headers.get(b"authorization", b""))
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            # Pages of other origins can post other types without asking.
            raise ServeError(415, "Content-Type: is not application/json; send JSON")
        check_length(_text(headers.get(b"content-length")), self._limits)
        if self._open >= self._limits.open:
            raise ServeError(
                429,
                f"server: answers {self._open} requests already; send the request again later",
                retry_after=RETRY_AFTER,
            )
        self._open += 1
        self._metrics.open.inc()
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
            self._metrics.open.dec()


def refusal_of(error: Exception, path: str = "") -> ServeError:
    """What a client of a path is told of an error."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return ServeError(404, "server: has no such path; those of OpenAI's API begin with /v1")
    if isinstance(error, HTTPException):
        return ServeError(error.status_code, f"server: {error.detail}", headers=error.headers)
    if isinstance(error, QueueFull):
        return ServeError(429, str(error), retry_after=RETRY_AFTER)
    if isinstance(error, PromptTooLong):
        param = PROMPTS.get(path)
        return ServeError(400, str(error), param=param, code="context_length_exceeded")
    if isinstance(error, OptionError | FormatError):
        if str(error).startswith("prompt: "):
            return ServeError(400, str(error), param=PROMPTS.get(path))
        named = re.match(r"sampling: (\w+)", str(error))
        param = named and CONSTRAINTS.get(named[1], named[1])
        is_ours = named is not None and param == named[1]
        text = str(error) if named is None or is_ours else f"{param}{str(error)[named.end() :]}"
        return ServeError(400, text, param=param)
    if isinstance(error, TensorplugError):
        return ServeError(503, f"server: cannot compute: {error}")
    return ServeError(500, "server: failed on this request; its log says where")


def log_failure(event: str, error: Exception, **fields: object) -> None:
    """Log where an error, or its cause, came from; its text may quote a prompt."""
    first = error.__cause__ or error
    where = traceback.format_tb(first.__traceback__)[-3:]
    log(event, level=logging.ERROR, error=type(first).__name__, where=where, **fields)


async def _refuse(error: ServeError, scope: Scope, send: Send, receive: Receive | None) -> None:
    """Answer with an error at once, then `receive` for a while what the client still sends."""
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    headers += [(k.lower().encode(), v.encode()) for k, v in error.headers.items()]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if not _is_small(dict(scope["headers"])):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is None:
        return
    try:
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body"):
                pass
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})


def _is_small(headers: Mapping[bytes, bytes]) -> bool:
    length = headers.get(b"content-length", b"0")
    is_short = length.isdigit() and len(length) < 9 and int(length) <= SMALL
    return is_short and b"transfer-encoding" not in headers


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
