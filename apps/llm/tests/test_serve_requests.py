"""Requests to the server: what bodies ask for, and which are refused, without a server."""

import json
from typing import Any

import pytest

from tensorplug.errors import OptionError
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.serve import requests
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.limits import Key, Limits, check_exposure, check_length
from tensorplug_llm.serve.reading import parse

guard = pytest.importorskip(
    "tensorplug_llm.serve.guard", reason="not installed: pip install 'tensorplug-llm[serve]'"
)

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


def test_chat_request_has_the_defaults_of_sampling() -> None:
    found = requests.chat_request(CHAT)

    assert found.messages == ({"role": "user", "content": "hello"},)
    assert found.params == requests.SamplingParams()
    assert (found.model, found.stream, found.include_usage) == (None, False, False)


def test_chat_request_takes_parameters_of_sampling() -> None:
    found = requests.chat_request(
        CHAT
        | {"temperature": 0, "top_p": 0.5, "n": 2, "stop": "x", "seed": 3, "max_tokens": 9}
        | {"logit_bias": {"5": -1}, "logprobs": True, "top_logprobs": 2, "frequency_penalty": 1}
    )

    assert found.params == requests.SamplingParams(
        temperature=0.0,
        top_p=0.5,
        n=2,
        stop=("x",),
        seed=3,
        max_tokens=9,
        logit_bias={5: -1.0},
        logprobs=2,
        frequency_penalty=1.0,
    )


def test_null_is_the_default() -> None:
    found = requests.chat_request(CHAT | {"temperature": None, "stop": None, "tools": None})

    assert found.params == requests.SamplingParams()


def test_max_completion_tokens_counts_before_max_tokens() -> None:
    found = requests.chat_request(CHAT | {"max_completion_tokens": 3, "max_tokens": 9})

    assert found.params.max_tokens == 3


def test_parts_of_a_content_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    found = requests.chat_request({"messages": [{"role": "developer", "content": parts}]})

    assert found.messages == ({"role": "system", "content": "a\nb"},)


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}},
            {"type": "null"},
        ),
    ],
)
def test_response_format_becomes_a_schema(form: Any, schema: Any) -> None:
    found = requests.chat_request(CHAT | {"response_format": form})

    assert found.params.json_schema == schema


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_completion_takes_texts_and_token_ids(prompt: Any, found: Any) -> None:
    request = requests.completion_request({"prompt": prompt})

    assert request.prompts == found
    assert request.params.max_tokens == 16


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "messages: is missing; send it"),
        ({"messages": []}, "messages: is empty; give a list with at least one message"),
        ({"messages": "hi"}, "messages: is a text; give a list with at least one message"),
        ({"messages": [3]}, "messages[0]: is 3; give an object"),
        (
            {"messages": [{"role": "god", "content": ""}]},
            "messages[0].role: is 'god'; give one of system, user, assistant, tool, developer",
        ),
        (user(None), "messages[0].content: is missing; give a text"),
        (user(7), "messages[0].content: is 7; give a text or a list of parts"),
        (
            user([{"type": "image_url"}]),
            "messages[0].content: has a part of the type 'image_url'; this server reads text only",
        ),
        (CHAT | {"temperature": "hot"}, "temperature: is a text; give a number up to 1e30"),
        (CHAT | {"temperature": True}, "temperature: is True; give a number up to 1e30"),
        (CHAT | {"n": 1.5}, "n: is 1.5; give a whole number of 64 bits"),
        (CHAT | {"n": 33}, "n: asks for 33 texts; 32 are allowed"),
        (CHAT | {"seed": 1 << 64}, f"seed: is {1 << 64}; give a whole number of 64 bits"),
        (CHAT | {"stream": 1}, "stream: is 1; give true or false"),
        (CHAT | {"stop": [1]}, "stop: is a list; give a text or a list of texts"),
        (CHAT | {"logit_bias": {"x": 1}}, "logit_bias: has the key 'x'; give ids of tokens"),
        (
            CHAT | {"top_logprobs": 2},
            "top_logprobs: is there without logprobs; set logprobs to true",
        ),
        (
            CHAT | {"logprobs": True, "top_logprobs": 99},
            "top_logprobs: asks for 99 tokens; give 0 to 20",
        ),
        (CHAT | {"top_p": 2}, "sampling: top_p is 2.0; give a number from 0 to 1"),
        (
            CHAT | {"max_tokens": 0},
            "max_tokens: is 0; give a number of at least 1",
        ),
        (
            CHAT | {"max_completion_tokens": 0},
            "max_completion_tokens: is 0; give a number of at least 1",
        ),
        (
            CHAT | {"modalities": ["text", "audio"]},
            'modalities: has others than "text"; leave it out',
        ),
        (
            CHAT | {"response_format": {"type": "xml"}},
            "response_format: has the type 'xml'; give text, json_object or json_schema",
        ),
        (
            CHAT | {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema: is missing; send it",
        ),
        (
            CHAT | {"functions": [{}]},
            "functions: this server does not support it; leave it out",
        ),
        (
            CHAT | {"magic": 1},
            "'magic': this server does not know the parameter; leave it out",
        ),
    ],
)
def test_wrong_chat_request_is_refused(values: Any, message: str) -> None:
    with pytest.raises((ServeError, OptionError)) as caught:
        requests.chat_request(values)

    refusal = guard.refusal_of(caught.value)
    assert (str(refusal), refusal.status) == (message, 400)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[]] * 33}, "n"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ],
)
def test_wrong_completion_names_its_parameter(values: Any, param: str) -> None:
    with pytest.raises(ServeError) as caught:
        requests.completion_request(values)

    assert caught.value.body()["error"]["param"] == param  # type: ignore[index]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"n": ' + b"9" * 10_000 + b"}",
    ],
)
def test_damaged_body_is_refused(body: bytes) -> None:
    with pytest.raises(ServeError) as caught:
        parse(body)

    assert caught.value.status == 400


def test_body_with_a_surrogate_pair_is_read() -> None:
    assert parse(json.dumps({"a": "\U0001f600"}).encode()) == {"a": "\U0001f600"}


@pytest.mark.parametrize(("length", "status"), [("101", 413), ("9" * 40, 413), ("x", 400)])
def test_declared_length_is_checked(length: str, status: int) -> None:
    with pytest.raises(ServeError) as caught:
        check_length(length, Limits(body=100))

    assert caught.value.status == status


@pytest.mark.parametrize("given", [b"", b"Bearer ", b"Bearer no", b"Basic key", b"key"])
def test_wrong_key_is_refused(given: bytes) -> None:
    with pytest.raises(ServeError) as caught:
        Key("key").check(given)

    assert caught.value.status == 401


def test_right_key_is_taken() -> None:
    Key("key").check(b"Bearer key")
    Key("key\n").check(b"Bearer key")
    Key(None).check(b"")


@pytest.mark.parametrize("key", ["", "\n", "a\nb", "a\0", "schlüssel", "\udc80"], ids=ascii)
def test_key_that_no_request_can_bring_is_refused(key: str) -> None:
    with pytest.raises(OptionError, match=r"^--api-key: "):
        check_exposure("127.0.0.1", key=key, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "::", "example.org"])
def test_other_machines_are_served_with_a_key_only(host: str) -> None:
    with pytest.raises(OptionError):
        check_exposure(host, key=None, insecure=False)

    check_exposure(host, key="key", insecure=False)
    check_exposure(host, key=None, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_own_machine_is_served_without_a_key(host: str) -> None:
    check_exposure(host, key=None, insecure=False)


def test_limit_of_tokens_holds_where_a_request_names_none() -> None:
    wanted = requests.chat_request(CHAT)

    assert requests.limited(wanted, 5).max_tokens == 5
    assert requests.limited(wanted, None).max_tokens is None


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_request_for_more_tokens_than_the_limit_names_its_parameter(name: str) -> None:
    with pytest.raises(ServeError, match=f"^{name}: is 6, and this server allows 5$"):
        requests.limited(requests.chat_request(CHAT | {name: 6}), 5)


def test_parameters_that_change_no_token_are_taken() -> None:
    options = {"include_obfuscation": False, "include_usage": True}

    found = requests.chat_request(CHAT | {"modalities": ["text"], "stream_options": options})

    assert found == requests.chat_request(CHAT | {"stream_options": {"include_usage": True}})


@pytest.mark.parametrize("seed", [-2, -(1 << 62), 0, 1 << 62])
def test_any_seed_of_64_bits_is_taken(seed: int) -> None:
    assert requests.chat_request(CHAT | {"seed": seed}).params.seed == seed % (1 << 64)


def test_seed_of_minus_one_is_any_seed_as_in_llama_cpp() -> None:
    assert requests.chat_request(CHAT | {"seed": -1}).params.seed is None


def test_unknown_parameters_that_are_null_are_left_out() -> None:
    message = {"role": "user", "content": "hello", "tool_calls": None}
    asked = {"messages": [message], "reasoning_effort": None}

    assert requests.chat_request(asked).messages == ({"role": "user", "content": "hello"},)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/tokenize", "content"),
        ("/v1/embeddings", "input"),
    ],
)
def test_prompt_that_is_too_long_names_the_parameter_of_its_path(path: str, param: str) -> None:
    assert guard.refusal_of(PromptTooLong("prompt: is too long"), path).param == param
    assert guard.refusal_of(OptionError("prompt: has no tokens"), path).param == param


@pytest.mark.parametrize(
    ("given", "message", "param"),
    [
        ("json_schema: bad; correct it", "response_format: bad; correct it", "response_format"),
        ("grammar has 9 characters", "tools has 9 characters", "tools"),
        ("top_p is 2", "sampling: top_p is 2", "top_p"),
    ],
)
def test_error_of_sampling_names_the_parameter_of_the_request(
    given: str, message: str, param: str
) -> None:
    refusal = guard.refusal_of(OptionError(f"sampling: {given}"))

    assert (str(refusal), refusal.param) == (message, param)
