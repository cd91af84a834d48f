"""`/health` of a server whose devices fail."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorplug import Backend
from tensorplug.errors import RunFailed
from tensorplug_llm import Engine, SamplingParams, load_model

from .failing import Dying

httpx = pytest.importorskip("httpx2", reason="httpx2 is not installed")
running = pytest.importorskip(
    "tensorplug_llm.serve.running", reason="not installed: pip install 'tensorplug-llm[serve]'"
)

Write = Callable[..., Path]
Open = Callable[..., Backend]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def health(engine: Engine) -> tuple[int, Any]:
    """Status and body of the answer of a server of one model."""

    async def answer() -> tuple[int, Any]:
        transport = httpx.ASGITransport(
            running.Server([running.served("tiny", engine.model, engine)]).app
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.get("/health")
            return response.status_code, response.json()

    return asyncio.run(answer())


def test_health_names_a_lost_device_without_which_texts_go_on(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    with (
        load_model(model_file(), streams, layers=[1, 1, 0]) as model,
        Engine(model, context=64, on_failure="replan") as engine,
    ):
        assert health(engine) == (200, {"status": "ok"})
        Dying(monkeypatch, streams[1], 20)
        engine.submit([40, 41, 42], GREEDY).result()

        assert health(engine) == (200, {"status": "degraded", "lost": {"tiny": ["walled:1"]}})


def test_health_knows_a_failed_engine_before_a_request_meets_it(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    with (
        load_model(model_file(), streams, layers=[1, 1, 0]) as model,
        Engine(model, context=64) as engine,
    ):
        Dying(monkeypatch, streams[1], 20)
        with pytest.raises(RunFailed):
            engine.submit([40, 41, 42], GREEDY).result()

        assert health(engine) == (503, {"status": "failed", "models": {"tiny": "RunFailed"}})
