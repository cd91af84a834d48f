"""Embeddings and ranks over HTTP, of a server with models that embed."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import DeviceLost
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.testing import tiny_models

httpx = pytest.importorskip("httpx2", reason="not installed: pip install 'tensorplug-llm[hf]'")
pytest.importorskip(
    "tensorplug_llm.serve.guard", reason="not installed: pip install 'tensorplug-llm[serve]'"
)

from tensorplug_llm.serve.app import Server  # noqa: E402 - of an extra
from tensorplug_llm.serve.encoders import EncoderModel  # noqa: E402

TEXTS = ["a b", "ab ac ad"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LanguageModel]]:
    folder = tmp_path_factory.mktemp("models")
    with contextlib.ExitStack() as stack:
        cpu = stack.enter_context(tp.open("cpu?threads=1"))
        found = {}
        for name in ("bert", "bert-rank"):
            tiny_models.write(name, folder / f"{name}.gguf")
            found[name] = stack.enter_context(load_model(folder / f"{name}.gguf", [cpu]))
        yield found


@pytest.fixture
def server(models: dict[str, LanguageModel]) -> Iterator[Server]:
    encoders = [EncoderModel(name, model) for name, model in models.items()]
    yield Server([], encoders)
    for encoder in encoders:
        encoder.close()


def ask(server: Server, path: str, body: object = None) -> Any:
    async def answer() -> Any:
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            if body is None:
                return await client.get(path)
            return await client.post(path, json=body)

    return asyncio.run(answer())


def test_embeddings_are_those_of_the_model(
    server: Server, models: dict[str, LanguageModel]
) -> None:
    answer = ask(server, "/v1/embeddings", {"input": TEXTS, "model": "bert"}).json()

    found = [entry["embedding"] for entry in answer["data"]]
    np.testing.assert_allclose(found, models["bert"].embed(TEXTS), rtol=1e-6)
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


def test_base64_holds_the_same_numbers(server: Server) -> None:
    body = {"input": "a b", "encoding_format": "base64"}

    coded = ask(server, "/v1/embeddings", body).json()["data"][0]["embedding"]

    plain = ask(server, "/v1/embeddings", {"input": "a b"}).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(coded), "<f4"), np.float32(plain))


def test_token_ids_are_embedded_as_their_text(
    server: Server, models: dict[str, LanguageModel]
) -> None:
    ids = models["bert"].tokenizer.encode("a b")

    found = ask(server, "/v1/embeddings", {"input": ids}).json()["data"]

    assert found == ask(server, "/v1/embeddings", {"input": ["a b"]}).json()["data"]


def test_documents_come_in_the_order_of_their_scores(
    server: Server, models: dict[str, LanguageModel]
) -> None:
    body = {"model": "bert-rank", "query": "a", "documents": ["b c", "d", "e f g"], "top_n": 2}

    results = ask(server, "/v1/rerank", body).json()["results"]

    scores = models["bert-rank"].rerank("a", ["b c", "d", "e f g"])
    order = np.argsort(-scores)[:2]
    assert [result["index"] for result in results] == order.tolist()
    np.testing.assert_allclose([r["relevance_score"] for r in results], scores[order], rtol=1e-6)


def test_models_that_embed_are_listed(server: Server) -> None:
    listed = ask(server, "/v1/models").json()["data"]

    assert [model["id"] for model in listed] == ["bert", "bert-rank"]
    assert ask(server, "/v1/models/bert").json()["id"] == "bert"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("embeddings", {"input": []}, 400, "has 0 texts"),
        ("embeddings", {"input": [{}]}, 400, "has empty in it"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, 400, "float or base64"),
        ("embeddings", {"input": "a", "dimensions": 3}, 400, "gives 64"),
        ("embeddings", {"input": "a", "colour": 3}, 400, "does not know the parameter"),
        ("embeddings", {"input": "a " * 400}, 400, "this model reads 256"),
        ("embeddings", {"input": [1 << 20]}, 400, "token ids"),
        ("embeddings", {"input": "a", "model": "x"}, 404, "embeds no texts here"),
        ("embeddings", {"input": "a", "model": "bert-rank"}, 400, "ranks documents"),
        ("rerank", {"query": "a", "documents": ["b"]}, 400, "is not a reranker"),
        ("rerank", {"query": "a", "documents": "b"}, 400, "give a list of texts"),
        ("rerank", {"documents": ["b"]}, 400, "query: is missing"),
        ("completions", {"prompt": "a"}, 404, "the models of this server embed texts"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    server: Server, path: str, body: object, status: int, words: str
) -> None:
    answer = ask(server, f"/v1/{path}", body)

    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_health_names_an_encoder_whose_last_request_failed(
    server: Server, models: dict[str, LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedder() -> NoReturn:
        raise DeviceLost("gone")

    healths = []
    with monkeypatch.context() as patch:
        patch.setattr(models["bert"], "embedder", embedder)
        for texts in ("a b", 7):  # what a client does wrong says nothing of the model
            assert ask(server, "/v1/embeddings", {"input": texts}).status_code in (503, 400)
            answer = ask(server, "/health")
            healths.append((answer.status_code, answer.json()))
    assert ask(server, "/v1/embeddings", {"input": "a b"}).status_code == 200

    assert healths == [(503, {"status": "failed", "models": {"bert": "DeviceLost"}})] * 2
    assert ask(server, "/health").json() == {"status": "ok"}


def test_all_that_embeds_is_made_by_the_thread_of_the_model(
    server: Server, models: dict[str, LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, threads = models["bert"].embedder, set()
    monkeypatch.setattr(
        models["bert"], "embedder", lambda: threads.add(threading.get_ident()) or made()
    )

    assert ask(server, "/v1/embeddings", {"input": "a b"}).status_code == 200

    assert threads
    assert threading.get_ident() not in threads
