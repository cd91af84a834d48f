"""What a client may ask for, and how bodies are read within that."""

import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tensorplug.errors import OptionError
from tensorplug_llm.serve.errors import ServeError

LINGER = 1.0
"""Seconds in which a client may go on sending what is not read, so that it reads the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server."""

    body: int = 4 << 20
    """Bytes of a request."""
    tokens: int | None = None
    """Largest `max_tokens`."""
    open: int = 256
    """Requests that are being answered."""
    seconds: float = 30.0
    """Time in which a client must send its body, and read a part of an answer."""


def check_length(declared: str | None, limits: Limits) -> None:
    """Refuse a body by its Content-Length, before it is read."""
    if declared is None:
        return
    if not (declared.isascii() and declared.isdigit()):
        raise ServeError(400, "Content-Length: is not a number; correct it")
    if len(declared) > 18 or int(declared) > limits.body:
        raise _too_large(limits)


async def read_body(chunks: AsyncIterator[bytes], limits: Limits) -> bytes:
    """Join a body. Raises ServeError where it gets too large or takes too long."""
    import asyncio  # noqa: PLC0415 - commands that do not serve need not wait for it

    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in chunks:
                body += chunk
                if len(body) > limits.body:
                    raise _too_large(limits)
    except TimeoutError:
        raise ServeError(
            408, f"body: did not arrive within {limits.seconds:g} s; send it faster"
        ) from None
    return bytes(body)


def _too_large(limits: Limits) -> ServeError:
    return ServeError(413, f"body: is larger than {limits.body} bytes; send less")


class Key:
    """The key that requests must bring; compared in constant time.

    Blanks and line ends around it do not count: files of secrets end with a line end.
    """

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else _digest(key.strip().encode())

    def check(self, authorization: bytes) -> None:
        """Refuse a header `Authorization` without the key."""
        if self._digest is None:
            return
        scheme, _, given = authorization.partition(b" ")
        same = hmac.compare_digest(_digest(given.strip()), self._digest)
        if not (same and scheme.lower() == b"bearer"):
            raise ServeError(
                401,
                "Authorization: has no valid API key; send `Authorization: Bearer KEY`",
                code="invalid_api_key",
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def check_exposure(host: str, *, key: str | None, insecure: bool) -> None:
    """Refuse to serve other machines without a key. Raises OptionError."""
    if key is not None and not key.strip():
        raise OptionError("--api-key: is empty; give a secret")
    if key is not None and not (key.isascii() and key.strip().isprintable()):
        raise OptionError(
            "--api-key: has characters that a header cannot carry; give letters, digits and "
            "other characters of ASCII"
        )
    if key is None and not insecure and not _is_loopback(host):
        raise OptionError(
            f"--host: {host} is open to other machines and there is no key; give --api-key, or "
            "--insecure where everyone who reaches the port may use the model"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
