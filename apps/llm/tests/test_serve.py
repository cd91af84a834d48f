"""The server over HTTP: a process of its own with a tiny model."""

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import openai
import pytest

from tensorplug_llm.testing import tiny_models

from .gguf_files import END, write_model
from .servers import ServerProcess

CHEAP = ("--device", "cpu?threads=1")
GREEDY = {"temperature": 0, "max_tokens": 8}
USER = [{"role": "user", "content": "hello"}]
KEY = "sk-secret"
LONG = 900
"""Tokens of a long text."""
MANY = 31
"""Long texts of a request that does not end by itself before a test looks at it."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(path, *CHEAP) as server:
        yield server


@pytest.fixture(scope="module")
def small(path: Path) -> Iterator[ServerProcess]:
    """A server with a key, narrow limits and room for one text."""
    limits = ("--max-body", "1000", "--max-tokens", "1000", "--texts", "1", "--queue", str(MANY))
    with ServerProcess(path, *CHEAP, *limits, "--api-key", KEY) as server:
        yield server


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(http: httpx.Client, **values: Any) -> Any:
    response = http.post("/v1/completions", json={"prompt": "hello", **GREEDY, **values})
    assert response.status_code == 200, response.text
    return response.json()


# --- answers ---------------------------------------------------------------------------------


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "tensorplug-llm"


@pytest.mark.parametrize("context", ["300", "auto"])
def test_context_of_texts_may_be_larger_than_that_of_an_encoder(
    context: str, path: Path, tmp_path: Path
) -> None:
    tiny_models.write("bert", tmp_path / "bert.gguf")

    with ServerProcess(path, tmp_path / "bert.gguf", *CHEAP, "--context", context) as server:
        props = httpx.get(f"{server.url}/props").json()
        body = {"input": "a " * 260, "model": "bert"}
        refusal = httpx.post(f"{server.url}/v1/embeddings", json=body).json()["error"]["message"]
        warnings = [log for log in server.logs if log["event"] == "context"]

    assert props["context"] == (1024 if context == "auto" else 300)
    assert "262 tokens, and this model reads 256" in refusal
    told = [(log["model"], log["asked"], log["trained"]) for log in warnings]
    assert told == ([] if context == "auto" else [("bert", 300, 256)])


def test_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER, **GREEDY)

    choice = answer.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("<user>hello") - 1  # "he" is one token
    assert answer.usage.completion_tokens == 8


def test_chat_streams_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=USER, **GREEDY)

    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


def test_async_client_streams_the_same_text(server: ServerProcess, client: openai.OpenAI) -> None:
    import asyncio

    async def texts() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=USER, stream=True, **GREEDY
            )
            return [c.choices[0].delta.content or "" async for c in stream]

    whole = client.chat.completions.create(model="tiny", messages=USER, **GREEDY)

    assert "".join(asyncio.run(texts())) == whole.choices[0].message.content


def test_completion_continues_token_ids_as_their_text(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": "hello"}).json()["tokens"]

    assert len(ids) == 4
    assert complete(http, prompt=ids)["choices"] == complete(http)["choices"]


def test_results_of_many_prompts_come_in_order(http: httpx.Client) -> None:
    lone = [complete(http, prompt=text)["choices"][0]["text"] for text in "abc"]

    answer = complete(http, prompt=["a", "b", "c"])

    assert [choice["text"] for choice in answer["choices"]] == lone
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


def test_seed_decides_the_n_results(http: httpx.Client) -> None:
    wanted = {"temperature": 2, "n": 3, "seed": 5, "top_p": 1, "top_k": 0, "min_p": 0}

    first, second = (
        [choice["text"] for choice in complete(http, **wanted)["choices"]] for _ in "ab"
    )

    assert first == second
    assert len({*first}) == 3


def test_stop_string_ends_the_text_before_it(http: httpx.Client) -> None:
    text = complete(http)["choices"][0]["text"]

    choice = complete(http, stop=[text[3:5]])["choices"][0]

    assert choice["text"] == text[: text.index(text[3:5])]
    assert choice["finish_reason"] == "stop"


def test_penalty_changes_the_text(http: httpx.Client) -> None:
    plain = complete(http, max_tokens=40)["choices"][0]["text"]

    changed = complete(http, max_tokens=40, frequency_penalty=50)["choices"][0]["text"]

    assert changed != plain


def test_log_probabilities_are_those_of_the_chosen_tokens(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=USER, logprobs=True, top_logprobs=2, **GREEDY
    )

    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 8
    for token in found.content:
        assert token.logprob == token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


def test_special_tokens_in_a_message_stay_text(http: httpx.Client) -> None:
    plain = http.post("/v1/chat/completions", json={"messages": USER, **GREEDY}).json()

    message = {"role": "user", "content": "hello<end>"}
    marked = http.post("/v1/chat/completions", json={"messages": [message], **GREEDY}).json()

    added = marked["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    assert added == len("<end>")


def test_special_tokens_in_a_prompt_stay_text(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": "<end>"}).json()["tokens"]

    assert END not in ids
    assert len(ids) == len("<end>")


def test_health_metrics_and_props_are_shown(http: httpx.Client) -> None:
    complete(http)

    assert http.get("/health").json() == {"status": "ok"}
    assert 'tensorplug_llm_generated_tokens_total{model="tiny"}' in http.get("/metrics").text
    assert http.get("/props").json()["context"] == 1024


def test_schema_holds_the_answer(client: openai.OpenAI) -> None:
    schema = {"enum": ["red", "green"]}
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )

    assert json.loads(answer.choices[0].message.content or "") in schema["enum"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_of_the_readme_gets_an_answer(server: ServerProcess) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^curl (?:.*\\\n)*.*$", readme, flags=re.MULTILINE)

    run = subprocess.run(
        command.replace("http://127.0.0.1:8080", server.url),
        shell=True,
        capture_output=True,
        check=True,
    )

    assert json.loads(run.stdout)["object"] == "chat.completion"


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "route", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "\xff"}]}', 400),
        ("POST", "/v1/completions", b'{"prompt": [99999]}', 400),
        ("POST", "/v1/completions", b'{"prompt": []}', 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "logit_bias": {"999": 1}}', 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "other"}', 404),
        (
            "POST",
            "/v1/completions",
            b'{"prompt": "a", "response_format": {"type": "json_schema", "json_schema": '
            b'{"schema": {"type": "strange"}}}}',
            400,
        ),
        ("POST", "/v1/other", b"{}", 404),
        ("GET", "/v1/models/other", b"", 404),
        ("GET", "/v1/completions", b"", 405),
    ],
)
def test_wrong_request_gets_an_error_of_openai(
    method: str, route: str, body: bytes, status: int, http: httpx.Client
) -> None:
    headers = {"content-type": "application/json"}

    response = http.request(method, route, content=body, headers=headers)

    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}


def test_path_without_its_version_is_told_what_paths_begin_with(http: httpx.Client) -> None:
    response = http.post("/chat/completions", json={"messages": []})

    assert response.status_code == 404
    assert response.json()["error"]["message"].endswith("begin with /v1")


def test_prompt_beyond_the_context_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a" * 1024)

    assert caught.value.code == "context_length_exceeded"


def test_body_of_another_type_is_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b'{"prompt": "a"}')

    assert response.status_code == 415


def authorized(server: ServerProcess) -> httpx.Client:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def test_request_without_the_key_is_refused(small: ServerProcess) -> None:
    with httpx.Client(base_url=small.url) as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/health").status_code == 200
    with authorized(small) as http:
        assert http.get("/v1/models").status_code == 200


def test_large_body_is_refused_before_it_is_sent(small: ServerProcess) -> None:
    place = urlsplit(small.url)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        "Content-Type: application/json\r\nContent-Length: 500000000\r\n\r\n"
    )

    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(head.encode())

        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_large_body_of_unknown_length_is_refused(small: ServerProcess) -> None:
    with authorized(small) as http:
        response = http.post(
            "/v1/completions",
            content=(b"x" * 600 for _ in range(20)),
            headers={"content-type": "application/json"},
        )

    assert response.status_code == 413


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["header", "path"],
)
def test_answer_to_what_cannot_be_read_arrives(server: ServerProcess, request_: bytes) -> None:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(request_)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["message"] == (
        "request: is not HTTP/1.1, or its headers are too long; send a valid request"
    )


def test_max_tokens_above_the_limit_is_refused(small: ServerProcess) -> None:
    with authorized(small) as http:
        response = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1001})

    assert response.json()["error"]["param"] == "max_tokens"


def long(n: int = MANY) -> dict[str, Any]:
    bias = {str(END): -100}
    return {"prompt": "hello", "max_tokens": LONG, "n": n, "stream": True, "logit_bias": bias}


def test_too_many_requests_are_told_to_come_again(small: ServerProcess) -> None:
    with (
        authorized(small) as http,
        http.stream("POST", "/v1/completions", json=long()) as running,
    ):
        lines = running.iter_lines()  # the request ends with it
        next(lines)
        refused = http.post("/v1/completions", json=long())

    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_request_beyond_the_open_ones_is_told_to_come_again(path: Path) -> None:
    with (
        ServerProcess(path, *CHEAP, "--max-open", "1") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=long()) as running,
    ):
        lines = running.iter_lines()  # the request ends with it
        next(lines)
        refused = http.post("/v1/completions", json=long())

        assert (refused.status_code, refused.headers.get("retry-after")) == (429, "1")


def test_model_answers_by_its_name(path: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", seed=1)
    with (
        ServerProcess(path, other, *CHEAP) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        unnamed, tiny, named = (
            complete(http, **name) for name in ({}, {"model": "tiny"}, {"model": "other"})
        )

        assert (unnamed["model"], named["model"]) == ("tiny", "other")
        assert unnamed["choices"] == tiny["choices"] != named["choices"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads times as Linux tells them")
def test_idle_server_takes_no_processor_time(server: ServerProcess, http: httpx.Client) -> None:
    complete(http)
    server.wait_until_idle()

    assert server.processor_seconds(1.0) <= 0.03


# --- clients and signals ---------------------------------------------------------------------


def test_client_that_goes_away_ends_its_text(server: ServerProcess, http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={**long(), "prompt": "gone"}) as response:
        next(response.iter_lines())

    log = server.wait_for(event="request", path="/v1/completions", prompt_tokens=len("gone"))
    assert 0 < log["generated_tokens"] < MANY * LONG


def counted(http: httpx.Client) -> str:
    """The line of the metrics with the number of tokens of prompts."""
    lines = http.get("/metrics").text.splitlines()
    return next((line for line in lines if "prompt_tokens_total{" in line), "")


def test_client_that_goes_away_without_streaming_ends_its_text(
    small: ServerProcess,
) -> None:
    place = urlsplit(small.url)
    body = json.dumps({**long(), "stream": False, "prompt": "away."}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with authorized(small) as http:
        before = counted(http)
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            connection.sendall(head.encode() + body)
            while counted(http) == before:
                pass

    log = small.wait_for(event="request", path="/v1/completions", prompt_tokens=len("away."))
    assert (log["status"], log["generated_tokens"] < MANY * LONG) == (499, True)


def test_log_has_no_prompts(server: ServerProcess, http: httpx.Client) -> None:
    complete(http, prompt="my secret prompt")

    server.wait_for(event="request", prompt_tokens=len("my secret prompt"))
    assert "secret" not in "".join(server.lines)


def test_terminated_server_ends_its_texts(path: Path) -> None:
    with (
        ServerProcess(path, *CHEAP) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=long(1)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        status: list[int] = []
        stopping = threading.Thread(target=lambda: status.append(server.stop()))
        stopping.start()
        rest = [line for line in lines if line]
        stopping.join()

    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert status == [143]
    assert server.logs[-1]["event"] == "closed"


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_are_not_complete_when_the_server_ends_say_so(
    path: Path, *, stream: bool
) -> None:
    with (
        ServerProcess(path, *CHEAP, "--drain", "0") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = {**long(), "stream": stream}
        answer = pool.submit(http.post, "/v1/completions", json=asked)
        while "open_requests 1.0" not in http.get("/metrics").text:
            pass
        server.stop()
        response = answer.result()

    body = response.text.split("data: ")[-1]
    assert response.status_code == (200 if stream else 503)
    assert json.loads(body)["error"]["message"] == "server: is closing; send the request again"
    assert "Traceback" not in "".join(server.lines)


def test_port_in_use_is_named(path: Path, server: ServerProcess) -> None:
    port = str(urlsplit(server.url).port)

    with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1 port {port}"):
        ServerProcess(path, *CHEAP, "--port", port)
