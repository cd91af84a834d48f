"""Tools through the official client, from a server process with a tiny model of each family."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from .gguf_files import BYTES, END, write_model
from .servers import ServerProcess
from .tool_templates import FAMILIES, Family

USER = [{"role": "user", "content": "Weather in Rome?"}]
CITY = {"type": "string", "enum": ["Rome", "Oslo"]}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    # A tiny model that is free to write a number writes digits without end.
    "function": {"name": "weather", "parameters": {**PARAMETERS, "additionalProperties": False}},
}
FORCED: Any = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 200}


def write_family(path: Path, family: Family) -> Path:
    """A tiny model with the template and the control tokens of a family."""
    tokens = [*BYTES, "he", "<end>", *family.control]
    types = [1] * (len(BYTES) + 1) + [3] * (1 + len(family.control))
    changed = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": family.template,
    }
    return write_model(path, metadata=changed)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server of all families, and of a model whose template knows no tools."""
    folder = tmp_path_factory.mktemp("families")
    paths = [write_family(folder / f"{name}.gguf", family) for name, family in FAMILIES.items()]
    plain = write_model(folder / "plain.gguf")
    with ServerProcess(*paths, plain, "--device", "cpu?threads=1") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def city(arguments: str) -> str:
    return str(json.loads(arguments)["city"])


@pytest.mark.parametrize("model", FAMILIES)
def test_forced_call_is_answered_and_its_result_read(model: str, client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=model, messages=USER, **FORCED).choices[0]
    (call,) = first.message.tool_calls or ()
    told = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}

    second = client.chat.completions.create(
        model=model, messages=[*USER, first.message, told], tools=[WEATHER], max_tokens=4
    )

    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "weather")
    assert city(call.function.arguments) in ("Rome", "Oslo")
    assert second.choices[0].message.tool_calls is None


@pytest.mark.parametrize("model", FAMILIES)
def test_streamed_call_is_that_of_the_whole_answer(model: str, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=model, messages=USER, **FORCED)

    with client.chat.completions.stream(model=model, messages=USER, **FORCED) as stream:
        found = stream.get_final_completion().choices[0]

    (call,), (expected,) = (c.message.tool_calls or () for c in (found, whole.choices[0]))
    assert call.function.name == expected.function.name
    assert call.function.arguments == expected.function.arguments
    assert found.finish_reason == "tool_calls"
    assert not found.message.content


def test_named_function_is_called_with_arguments_of_its_schema(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    other = {"type": "function", "function": {"name": "time"}}

    answer = client.chat.completions.create(
        model="hermes",
        messages=USER,
        tools=[other, WEATHER],
        tool_choice=choice,
        n=2,
        max_tokens=200,
    )

    for one in answer.choices:
        (call,) = one.message.tool_calls or ()
        assert city(call.function.arguments) in ("Rome", "Oslo")


def test_tools_without_a_call_give_a_text(client: openai.OpenAI) -> None:
    bias = {str(END): -100}

    answer = client.chat.completions.create(
        model="hermes", messages=USER, tools=[WEATHER], max_tokens=8, logit_bias=bias
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


def test_model_whose_template_knows_no_tools_refuses_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="plain", messages=USER, tools=[WEATHER])

    assert caught.value.param == "tools"
