"""Connections of the server: how many there may be, and how long they may be silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

uvicorn = pytest.importorskip(
    "uvicorn", reason="not installed: pip install 'tensorplug-llm[serve]'"
)
responses = pytest.importorskip("starlette.responses")
protocol = pytest.importorskip("tensorplug_llm.serve.protocol")

PATIENCE = 30
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@asynccontextmanager
async def port() -> AsyncIterator[int]:
    """A server whose connections may be silent for a second."""
    config = uvicorn.Config(
        responses.PlainTextResponse("answer"),
        http=protocol.Protocol,
        ws="none",
        lifespan="off",
        port=0,
        log_config=None,
        timeout_keep_alive=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def received(port: int, *parts: bytes) -> bytes:
    """What comes on a connection, until it is closed, after these parts were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ((), 0),
        ((b"GET / HTT",), 0),
        ((REQUEST,), 1),
        ((REQUEST, b"GET"), 1),
        ((b"GET / HTT", REQUEST[9:], REQUEST + REQUEST), 3),
    ],
    ids=["nothing", "half a head", "request", "half a head after a request", "requests"],
)
def test_a_silent_connection_is_closed(parts: tuple[bytes, ...], answers: int) -> None:
    async def talk() -> bytes:
        async with port() as number:
            return await received(number, *parts)

    assert asyncio.run(talk()).count(b"answer") == answers


def test_a_connection_beyond_the_limit_is_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "CONNECTIONS", 1)

    async def talk() -> tuple[bytes, bytes]:
        async with port() as number:
            first = asyncio.create_task(received(number, b"GET"))
            await asyncio.sleep(0.2)
            second = await received(number)
            return second, await first

    second, first = asyncio.run(talk())

    assert first == b""
    assert second.startswith(b"HTTP/1.1 503 ")
    assert b"server: has 1 connections already; connect again later" in second
