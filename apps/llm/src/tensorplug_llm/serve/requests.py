"""What bodies of requests ask for, checked before anything is computed. Raises ServeError."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from tensorplug.errors import OptionError
from tensorplug_llm.sampling import SamplingParams
from tensorplug_llm.serve.errors import ServeError

T = TypeVar("T")
Object = Mapping[str, Any]

MOST_RESULTS = 32
"""Texts of one request: prompts times `n`."""
MOST_STOPS = 16
MOST_STOP = 256
"""Characters of a stop string."""
MOST_BIASES = 1024
MOST_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that does not say it, as in OpenAI's API."""

ROLES = {r: r for r in ("system", "user", "assistant")} | {"developer": "system"}
IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
)
"""Fields that change no token of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What requests for chats and for completions have in common."""

    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Wanted):
    """`/v1/chat/completions`."""

    messages: tuple[dict[str, str], ...]


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


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ServeError(400, "body: has half of a surrogate pair; send whole characters") from None
    except UnicodeDecodeError as error:
        raise ServeError(400, f"body: is not UTF-8 ({error.reason}); send UTF-8") from None
    except RecursionError:
        raise ServeError(400, "body: is nested too deeply; send fewer levels") from None
    except ValueError as error:
        raise ServeError(400, f"body: is not JSON: {str(error)[:200]}; correct it") from None
    if not isinstance(value, dict):
        raise ServeError(400, f"body: is {_kind(value)}; send a JSON object")
    return value


def chat_request(values: Object) -> ChatRequest:
    """Read a request for `/v1/chat/completions`."""
    fields = _Fields(values)
    messages = fields.given("messages", _messages)
    longest = fields.take("max_completion_tokens", _integer)
    if longest is None:
        longest = fields.take("max_tokens", _integer)
    else:
        fields.take("max_tokens", _integer)
    top = fields.take("top_logprobs", _integer)
    logprobs = (top or 0) if fields.take("logprobs", _boolean) else None
    if top is not None and logprobs is None:
        _refuse("top_logprobs", "is there without logprobs; set logprobs to true")
    for name in ("tools", "functions"):
        if fields.take(name, _anything):
            _unsupported(name)
    for name in ("tool_choice", "function_call", "parallel_tool_calls"):
        fields.take(name, _anything)  # says nothing where there are no tools
    return ChatRequest(messages=messages, **_wanted(fields, longest, logprobs, prompts=1))


def completion_request(values: Object) -> CompletionRequest:
    """Read a request for `/v1/completions`."""
    fields = _Fields(values)
    prompts = fields.given("prompt", _prompts)
    longest = fields.take("max_tokens", _integer)
    logprobs = fields.take("logprobs", _integer)
    for name in ("echo", "suffix"):
        if fields.take(name, _anything):
            _unsupported(name)
    best_of = fields.take("best_of", _integer)
    if best_of not in (None, values.get("n") or 1):
        _refuse("best_of", "differs from n, which this server does not support; leave it out")
    longest = COMPLETION_TOKENS if longest is None else longest
    return CompletionRequest(
        prompts=prompts, **_wanted(fields, longest, logprobs, prompts=len(prompts))
    )


def tokenize_request(values: Object) -> TokenizeRequest:
    """Read a request for `/tokenize`."""
    fields = _Fields(values)
    request = TokenizeRequest(
        model=fields.take("model", _text),
        text=fields.given("content", _text),
        add_special=bool(fields.take("add_special", _boolean)),
    )
    fields.check_empty()
    return request


def check_biases(params: SamplingParams, size: int) -> None:
    """Refuse a `logit_bias` for tokens that a vocabulary of `size` does not have."""
    if params.logit_bias and max(params.logit_bias) >= size:
        largest = max(params.logit_bias)
        _refuse("logit_bias", f"names token {largest}, and the model knows 0 to {size - 1}")


def limited(params: SamplingParams, most: int | None) -> SamplingParams:
    """The parameters with the server's limit of tokens; a larger `max_tokens` is refused."""
    if most is None:
        return params
    if params.max_tokens is None:
        return replace(params, max_tokens=most)
    if params.max_tokens > most:
        _refuse("max_tokens", f"is {params.max_tokens}, and this server allows {most}")
    return params


# --- the parts of a request -----------------------------------------------------------------------


class _Fields:
    """The fields of an object; each is taken once, and none may be left."""

    def __init__(self, values: Object) -> None:
        self._left = dict(values)

    def take(self, name: str, read: Callable[[str, Any], T]) -> T | None:
        """The value of a field, or None where it is not there or null."""
        value = self._left.pop(name, None)
        return None if value is None else read(name, value)

    def given(self, name: str, read: Callable[[str, Any], T]) -> T:
        """The value of a field that must be there."""
        value = self.take(name, read)
        if value is None:
            raise ServeError(
                400, f"{name}: is missing; send it", param=name, code="missing_required_parameter"
            )
        return value

    def check_empty(self) -> None:
        """Refuse fields that nothing has taken."""
        for name in self._left.keys() - IGNORED:
            raise ServeError(
                400,
                f"{_shown(name)}: this server does not know the parameter; leave it out",
                param=name[:40],
                code="unknown_parameter",
            )


def _wanted(
    fields: _Fields, max_tokens: int | None, logprobs: int | None, *, prompts: int
) -> dict[str, Any]:
    """The arguments of `Wanted`; all other fields must have been taken."""
    if logprobs is not None and not 0 <= logprobs <= MOST_LOGPROBS:
        _refuse("logprobs", f"asks for {logprobs} tokens; give 0 to {MOST_LOGPROBS}")
    given: dict[str, Any] = {
        name: value
        for name, read in _SAMPLING.items()
        if (value := fields.take(name, read)) is not None
    }
    schema = fields.take("response_format", _schema)
    stream = fields.take("stream", _boolean) or False
    options = _Fields(fields.take("stream_options", _object) or {})
    include_usage = options.take("include_usage", _boolean) or False
    model = fields.take("model", _text)
    options.check_empty()
    fields.check_empty()
    try:
        params = SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs, json_schema=schema, **given
        )
    except OptionError as error:
        found = re.match(r"sampling: (\w+)", str(error))
        raise ServeError(400, str(error), param=found and found[1]) from error
    if prompts * params.n > MOST_RESULTS:
        _refuse("n", f"asks for {prompts * params.n} texts; {MOST_RESULTS} are allowed")
    return {
        "model": model,
        "params": params,
        "stream": stream,
        "include_usage": include_usage,
    }


def _messages(name: str, value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        _refuse(name, f"is {_kind(value)}; give a list with at least one message")
    return tuple(_message(f"{name}[{i}]", message) for i, message in enumerate(value))


def _message(name: str, value: Any) -> dict[str, str]:
    fields = _Fields(_object(name, value))
    role = fields.take("role", _text)
    if role not in ROLES:
        _refuse(f"{name}.role", f"is {_shown(role)}; give one of {', '.join(ROLES)}")
    content = fields.take("content", _content)
    fields.take("name", _text)
    fields.take("refusal", _anything)
    for calls in ("tool_calls", "function_call", "audio"):
        if fields.take(calls, _anything):
            _unsupported(f"{name}.{calls}")
    if content is None:
        _refuse(f"{name}.content", "is missing; give a text")
    fields.check_empty()
    return {"role": ROLES[role], "content": content}


def _content(name: str, value: Any) -> str:
    """A text, or the joined texts of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _refuse(name, f"is {_kind(value)}; give a text or a list of parts")
    texts = []
    for part in value:
        kind = _object(name, part).get("type")
        if kind != "text":
            _refuse(name, f"has a part of the type {_shown(kind)}; this server reads text only")
        texts.append(_text(f"{name}.text", part.get("text")))
    return "\n".join(texts)


def _prompts(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        _refuse(name, f"is {_kind(value)}; give a text, a list of texts or a list of token ids")
    if all(isinstance(part, str) for part in value):
        return tuple(value)
    lists = value if all(isinstance(part, list) for part in value) else [value]
    return tuple(tuple(_integer(name, id) for id in ids) for ids in lists)


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(name, f"is {_kind(value)}; give a text or a list of texts")
    if len(texts) > MOST_STOPS or any(len(text) > MOST_STOP for text in texts):
        _refuse(name, f"has more than {MOST_STOPS} texts of {MOST_STOP} characters; give fewer")
    return tuple(texts)


def _biases(name: str, value: Any) -> dict[int, float]:
    biases = _object(name, value)
    if len(biases) > MOST_BIASES:
        _refuse(name, f"has {len(biases)} tokens; {MOST_BIASES} are allowed")
    for token in biases:
        if not re.fullmatch(r"\d{1,9}", token, re.ASCII):
            _refuse(name, f"has the key {_shown(token)}; give ids of tokens")
    return {int(token): _number(name, bias) for token, bias in biases.items()}


def _schema(name: str, value: Any) -> Object | None:
    """The schema of a `response_format`."""
    fields = _Fields(_object(name, value))
    kind = fields.given("type", _text)
    schema = None
    if kind == "json_schema":
        form = _Fields(fields.given("json_schema", _object))
        schema = form.given("schema", _object)
        form.take("name", _text)
        form.take("description", _text)
        form.take("strict", _boolean)  # a schema is always followed
        form.check_empty()
    elif kind == "json_object":
        schema = {"type": "object"}
    elif kind != "text":
        _refuse(name, f"has the type {_shown(kind)}; give text, json_object or json_schema")
    fields.check_empty()
    return schema


def _anything(name: str, value: Any) -> Any:  # noqa: ARG001 - a reader of fields
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, f"is {_kind(value)}; give a text")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(name, f"is {_kind(value)}; give true or false")
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        _refuse(name, f"is {_kind(value)}; give a whole number of 64 bits")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30:
        _refuse(name, f"is {_kind(value)}; give a number up to 1e30")
    return float(value)


def _object(name: str, value: Any) -> Object:
    if not isinstance(value, dict):
        _refuse(name, f"is {_kind(value)}; give an object")
    return value


_SAMPLING: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("n", "seed", "top_k", "repeat_last_n"), _integer),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "repeat_penalty"), _number),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _number),
    "stop": _stop,
    "logit_bias": _biases,
}
"""Fields of a request that are fields of `SamplingParams` too."""


def _refuse(name: str, why: str) -> NoReturn:
    raise ServeError(400, f"{name}: {why}", param=name, code="invalid_value")


def _unsupported(name: str) -> NoReturn:
    raise ServeError(
        400,
        f"{name}: this server does not support it; leave it out",
        param=name,
        code="unsupported_parameter",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _shown(value: Any) -> str:
    """A value in an error, cut."""
    return repr(value)[:40]


def _kind(value: Any) -> str:
    """A value in an error: its type where it is long."""
    if value is None or isinstance(value, bool | int | float):
        return _shown(value)
    names: Sequence[tuple[type, str]] = ((str, "a text"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind) and value), "empty")
