"""`/health` of a server whose devices fail."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tensorplug import Backend
from tensorplug.errors import RunFailed
from tensorplug_llm import Engine, SamplingParams, load_model
from tensorplug_llm.confined import Confined

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


def test_other_requests_are_answered_while_schemas_compile(
    model_file: Write, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Confined, "answer", lambda *_: ended.wait(60))

    async def status(app: Any) -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        transport = httpx.ASGITransport(app)
        body: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
        formed = body | {"response_format": {"type": "json_object"}}
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            path = "/v1/completions"
            slow = [asyncio.ensure_future(client.post(path, json=formed)) for _ in range(6)]
            await asyncio.sleep(0.1)
            answer = await asyncio.wait_for(client.post(path, json=body), 30)
            assert not any(one.done() for one in slow)
            ended.set()
            await asyncio.gather(*slow)
            return int(answer.status_code)

    with load_model(model_file(), [cpu]) as model, Engine(model, context=64) as engine:
        assert (
            asyncio.run(status(running.Server([running.served("tiny", model, engine)]).app)) == 200
        )


def test_metrics_do_not_grow_with_the_names_that_clients_ask_for(
    model_file: Write, cpu: Backend
) -> None:
    async def metrics(app: Any) -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            for name in ("stranger", "foreigner"):
                assert (await client.get(f"/v1/models/{name}")).status_code == 404
            return str((await client.get("/metrics")).text)

    with load_model(model_file(), [cpu]) as model, Engine(model, context=64) as engine:
        server = running.Server([running.served("tiny", model, engine)])
        found = asyncio.run(metrics(server.app))

    assert 'requests_total{route="/v1/models/{name}",status="404"} 2.0' in found
    assert "stranger" not in found


def test_wrong_method_is_told_the_right_ones(model_file: Write, cpu: Backend) -> None:
    async def answer(app: Any) -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/v1/chat/completions")

    with load_model(model_file(), [cpu]) as model, Engine(model, context=64) as engine:
        found = asyncio.run(answer(running.Server([running.served("tiny", model, engine)]).app))

    assert (found.status_code, found.headers["allow"]) == (405, "POST")
