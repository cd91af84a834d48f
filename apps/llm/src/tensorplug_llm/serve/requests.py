"""What requests ask for, checked before anything is computed. Raises ServeError, OptionError."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorplug_llm.sampling import SamplingParams
from tensorplug_llm.serve import reading
from tensorplug_llm.serve.messages import messages
from tensorplug_llm.serve.reading import Fields, Object, kind, refuse, shown, unsupported
from tensorplug_llm.serve.tools import Tools, tools_of

MOST_RESULTS = 32
"""Texts of one request: prompts times `n`."""
MOST_STOPS = 16
MOST_STOP = 256
"""Characters of a stop string."""
MOST_BIASES = 1024
MOST_LOGPROBS = 20
ANY_SEED = -1
COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that does not say it, as in OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What requests for chats and for completions have in common."""

    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    longest: str = "max_tokens"
    """The parameter that is `max_tokens` of `params`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Wanted):
    """`/v1/chat/completions`."""

    messages: tuple[dict[str, Any], ...]
    tools: Tools | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(Wanted):
    """`/v1/completions`: prompts are texts or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """`/tokenize`."""

    model: str | None
    text: str
    add_special: bool


def chat_request(values: Object) -> ChatRequest:
    """Read a request for `/v1/chat/completions`."""
    fields = Fields(values)
    conversation = fields.given("messages", messages)
    given = {n: fields.take(n, _tokens) for n in ("max_completion_tokens", "max_tokens")}
    longest = next((name for name, tokens in given.items() if tokens is not None), "max_tokens")
    top = fields.take("top_logprobs", _logprobs)
    logprobs = (top or 0) if fields.take("logprobs", reading.boolean) else None
    if top is not None and logprobs is None:
        refuse("top_logprobs", "is there without logprobs; set logprobs to true")
    for name in ("functions", "function_call"):
        if fields.take(name, reading.anything):
            unsupported(name)
    if fields.take("modalities", reading.anything) not in (None, ["text"]):
        refuse("modalities", 'has others than "text"; leave it out')
    tools = tools_of(fields)
    common = _wanted(fields, given[longest], logprobs, prompts=1)
    if tools is not None and common["params"].json_schema is not None:
        refuse("response_format", "is there with tools, which have forms of their own; leave one")
    return ChatRequest(messages=conversation, tools=tools, longest=longest, **common)


def completion_request(values: Object) -> CompletionRequest:
    """Read a request for `/v1/completions`."""
    fields = Fields(values)
    prompts = fields.given("prompt", _prompts)
    longest = fields.take("max_tokens", _tokens)
    logprobs = fields.take("logprobs", _logprobs)
    for name in ("echo", "suffix"):
        if fields.take(name, reading.anything):
            unsupported(name)
    best_of = fields.take("best_of", reading.integer)
    if best_of not in (None, values.get("n") or 1):
        refuse("best_of", "differs from n, which this server does not support; leave it out")
    longest = COMPLETION_TOKENS if longest is None else longest
    return CompletionRequest(
        prompts=prompts, **_wanted(fields, longest, logprobs, prompts=len(prompts))
    )


def tokenize_request(values: Object) -> TokenizeRequest:
    """Read a request for `/tokenize`."""
    fields = Fields(values)
    request = TokenizeRequest(
        model=fields.take("model", reading.text),
        text=fields.given("content", reading.text),
        add_special=bool(fields.take("add_special", reading.boolean)),
    )
    fields.check_empty()
    return request


def limited(wanted: Wanted, most: int | None) -> SamplingParams:
    """The parameters with the server's limit of tokens; a larger `max_tokens` is refused."""
    params = wanted.params
    if most is None:
        return params
    if params.max_tokens is None:
        return replace(params, max_tokens=most)
    if params.max_tokens > most:
        refuse(wanted.longest, f"is {params.max_tokens}, and this server allows {most}")
    return params


# --- the parts of a request -----------------------------------------------------------------------


def _wanted(
    fields: Fields, max_tokens: int | None, logprobs: int | None, *, prompts: int
) -> dict[str, Any]:
    """The arguments of `Wanted`; all other fields must have been taken."""
    given: dict[str, Any] = {
        name: value
        for name, read in _SAMPLING.items()
        if (value := fields.take(name, read)) is not None
    }
    schema = fields.take("response_format", _schema)
    stream = fields.take("stream", reading.boolean) or False
    options = fields.take("stream_options", reading.fields) or Fields({})
    include_usage = options.take("include_usage", reading.boolean) or False
    options.take("include_obfuscation", reading.boolean)  # bytes that say nothing
    model = fields.take("model", reading.text)
    options.check_empty()
    fields.check_empty()
    params = SamplingParams(max_tokens=max_tokens, logprobs=logprobs, json_schema=schema, **given)
    if prompts * params.n > MOST_RESULTS:
        refuse("n", f"asks for {prompts * params.n} texts; {MOST_RESULTS} are allowed")
    return {
        "model": model,
        "params": params,
        "stream": stream,
        "include_usage": include_usage,
    }


def _tokens(name: str, value: Any) -> int:
    tokens = reading.integer(name, value)
    if tokens < 1:
        refuse(name, f"is {tokens}; give a number of at least 1")
    return tokens


def _logprobs(name: str, value: Any) -> int:
    tokens = reading.integer(name, value)
    if not 0 <= tokens <= MOST_LOGPROBS:
        refuse(name, f"asks for {tokens} tokens; give 0 to {MOST_LOGPROBS}")
    return tokens


def _seed(name: str, value: Any) -> int | None:
    """Any number of 64 bits; ours begin at 0. As in llama.cpp, -1 asks for any seed."""
    seed = reading.integer(name, value)
    return None if seed == ANY_SEED else seed % (1 << 64)


def _prompts(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        refuse(name, f"is {kind(value)}; give a text, a list of texts or a list of token ids")
    if all(isinstance(part, str) for part in value):
        return tuple(value)
    lists = value if all(isinstance(part, list) for part in value) else [value]
    return tuple(tuple(reading.integer(name, id) for id in ids) for ids in lists)


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        refuse(name, f"is {kind(value)}; give a text or a list of texts")
    if len(texts) > MOST_STOPS or any(len(text) > MOST_STOP for text in texts):
        refuse(name, f"has more than {MOST_STOPS} texts of {MOST_STOP} characters; give fewer")
    return tuple(texts)


def _biases(name: str, value: Any) -> dict[int, float]:
    biases = reading.json_object(name, value)
    if len(biases) > MOST_BIASES:
        refuse(name, f"has {len(biases)} tokens; {MOST_BIASES} are allowed")
    for token in biases:
        if not re.fullmatch(r"\d{1,9}", token, re.ASCII):
            refuse(name, f"has the key {shown(token)}; give ids of tokens")
    return {int(token): reading.number(name, bias) for token, bias in biases.items()}


def _schema(name: str, value: Any) -> Object | None:
    """The schema of a `response_format`."""
    fields = reading.fields(name, value)
    kind = fields.given("type", reading.text)
    schema = None
    if kind == "json_schema":
        form = fields.given("json_schema", reading.fields)
        schema = form.given("schema", reading.json_object)
        form.take("name", reading.text)
        form.take("description", reading.text)
        form.take("strict", reading.boolean)  # a schema is always followed
        form.check_empty()
    elif kind == "json_object":
        schema = {"type": "object"}
    elif kind != "text":
        refuse(name, f"has the type {shown(kind)}; give text, json_object or json_schema")
    fields.check_empty()
    return schema


_SAMPLING: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("n", "top_k", "repeat_last_n"), reading.integer),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty"), reading.number
    ),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), reading.number),
    "seed": _seed,
    "stop": _stop,
    "logit_bias": _biases,
}
"""Fields of a request that are fields of `SamplingParams` too."""
