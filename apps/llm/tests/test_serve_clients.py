"""What a server does for clients that are slow or go away, and while a device fails."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorplug import Backend
from tensorplug_llm import Engine, LanguageModel, load_model

from .failing import Dying

httpx = pytest.importorskip("httpx2", reason="httpx2 is not installed")
running = pytest.importorskip(
    "tensorplug_llm.serve.running", reason="not installed: pip install 'tensorplug-llm[serve]'"
)

Write = Callable[..., Path]
Open = Callable[..., Backend]
Message = dict[str, Any]
NEVER = -100.0
"""Added to the logits of the token that ends texts."""


@pytest.fixture
def model(model_file: Write, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(model_file(), [cpu]) as model:
        yield model


def app_of(engine: Engine, **limits: Any) -> Any:
    served = running.served("tiny", engine.model, engine)
    return running.Server([served], limits=running.Limits(**limits)).app


def completion(number: int, tokens: int) -> Message:
    ends = {"257": NEVER}
    return {"prompt": f"{number}: ", "max_tokens": tokens, "temperature": 0, "logit_bias": ends}


async def asked(app: Any, receive: Callable[[], Awaitable[Message]]) -> list[Message]:
    """What an app sends to a client of `/v1/completions`."""
    sent: list[Message] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_client_that_sends_its_body_too_slowly_is_told_so(model: LanguageModel) -> None:
    begun = iter([{"type": "http.request", "body": b'{"prompt"', "more_body": True}])

    async def receive() -> Message:
        for message in begun:
            return message
        await asyncio.Event().wait()  # the rest never comes
        raise AssertionError

    with Engine(model) as engine:
        sent = asyncio.run(asked(app_of(engine, seconds=0.01), receive))

    error = json.loads(sent[1]["body"])["error"]
    assert sent[0]["status"] == 408
    assert error["message"] == "body: did not arrive within 0.01 s; send it faster"


def test_pages_of_a_client_that_went_away_are_free_after_a_step(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, done = threading.Semaphore(0), threading.Semaphore(0)
    body = json.dumps({**completion(1, tokens=900), "stream": True}).encode()
    request = iter([{"type": "http.request", "body": body, "more_body": False}])
    with Engine(model) as engine:
        step = engine._batcher.step

        def one_step() -> None:
            allowed.acquire()
            step()
            done.release()

        monkeypatch.setattr(engine._batcher, "step", one_step)

        async def receive() -> Message:
            for message in request:
                return message
            allowed.release(2)
            for _ in range(2):
                await asyncio.to_thread(done.acquire)
            assert engine.load.pages == 1
            return {"type": "http.disconnect"}

        asyncio.run(asked(app_of(engine), receive))
        assert engine.load.pages == 1
        allowed.release()
        done.acquire()

        assert (engine.load.pages, engine.load.running) == (0, 0)
        allowed.release(1000)


async def texts(app: Any, count: int) -> tuple[list[str], Message]:
    """The texts of requests sent at the same time, and the health after them."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=completion(n, 12)) for n in range(count))
        )
        assert [answer.status_code for answer in answers] == [200] * count
        health = (await client.get("/health")).json()
    return [answer.json()["choices"][0]["text"] for answer in answers], health


@pytest.mark.parametrize("waits", [10, 40])
def test_lost_device_loses_no_request(
    waits: int, model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_file()
    with load_model(path, [cpu]) as model, Engine(model, texts=4) as engine:
        expected, _ = asyncio.run(texts(app_of(engine), 12))
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    dying = Dying(monkeypatch, streams[1], waits)
    with (
        load_model(path, streams, layers=[1, 1, 0]) as model,
        Engine(model, texts=4, on_failure="replan") as engine,
    ):
        found, health = asyncio.run(texts(app_of(engine), 12))

    assert dying.left < 0
    assert found == expected
    assert health == {"status": "degraded", "lost": {"tiny": ["walled:1"]}}
