"""`SamplingParams`: how the tokens of a text are chosen, checked."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from tensorplug.errors import OptionError

MOST_CONSTRAINT = 1 << 16
"""Characters of a schema or grammar. One of this size takes up to 22 MiB and half a second; both
grow faster than the size."""

LARGEST = 1e9
"""Of numbers that change logits, which are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, with llama.cpp's names and defaults. Raises OptionError.

    The rules apply in the order of llama.cpp's chain: `logit_bias`, penalties, `top_k`,
    `typical_p`, `top_p`, `min_p`, `temperature`.
    """

    temperature: float = 0.8
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 40
    """Tokens that are kept, the most likely ones; 0 keeps all."""
    top_p: float = 0.95
    """Nucleus sampling: keep the most likely tokens up to this total probability; 1 keeps all."""
    min_p: float = 0.05
    """Drop tokens whose probability is below this fraction of the most likely token's."""
    typical_p: float = 1.0
    """Keep the tokens closest to the expected information, up to this total probability."""
    repeat_penalty: float = 1.0
    """Divides positive logits of recent tokens and multiplies negative ones."""
    repeat_last_n: int = 64
    """Tokens that count as recent for the three penalties; 0: none, -1: the whole text."""
    presence_penalty: float = 0.0
    """Is subtracted from the logit of each recent token."""
    frequency_penalty: float = 0.0
    """Is subtracted from the logit of a recent token for each of its occurrences."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Is added to the logits of these tokens; `-inf` forbids one."""
    stop: Sequence[str] = ()
    """Texts that end a generation; they are not part of the result."""
    seed: int | None = None
    """Equal seeds and logits give equal tokens; without a seed each text differs."""
    max_tokens: int | None = None
    """Tokens after which a generation ends; without it the end of the context does that."""
    n: int = 1
    """Results for one prompt."""
    logprobs: int | None = None
    """Most likely tokens whose log probabilities are reported; 0: only those of chosen tokens."""
    json_schema: Mapping[str, Any] | str | None = None
    """The text is JSON that satisfies this schema, an object or its text; `{}` is any JSON."""
    grammar: str | None = None
    """The text follows this grammar, in llama.cpp's GBNF or in Lark."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            _check_range(name, getattr(self, name), low, high)
        for name in _INTEGERS:
            _check_integer(name, getattr(self, name))
        for name, *_ in _RANGES:  # numbers of NumPy become Python's
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, int(value) if name in _INTEGERS else float(value))
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.json_schema is not None:
            if self.grammar is not None:
                raise OptionError("sampling: json_schema and grammar exclude each other; give one")
            object.__setattr__(self, "json_schema", _schema(self.json_schema))
        elif self.grammar is not None:
            _check_size("grammar", self.grammar)

    @property
    def constraint(self) -> str:
        """The schema or grammar as text; empty where a text may be anything."""
        if self.json_schema is not None:
            return json.dumps(self.json_schema)
        return self.grammar or ""

    @property
    def penalises(self) -> bool:
        """Whether tokens of the text change the logits."""
        penalties = (self.repeat_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(penalties)

    def __repr__(self) -> str:
        changed = (
            f"{f.name}={value!r}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(_DEFAULTS, f.name)
        )
        return f"SamplingParams({', '.join(changed)})"


_RANGES = (
    ("temperature", 0, math.inf),
    ("top_k", 0, math.inf),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("typical_p", 0, 1),
    ("repeat_penalty", 1 / LARGEST, LARGEST),
    ("repeat_last_n", -1, math.inf),
    ("presence_penalty", -LARGEST, LARGEST),
    ("frequency_penalty", -LARGEST, LARGEST),
    ("seed", 0, math.inf),
    ("max_tokens", 1, math.inf),
    ("n", 1, math.inf),
    ("logprobs", 0, math.inf),
)
_INTEGERS = ("top_k", "repeat_last_n", "seed", "max_tokens", "n", "logprobs")
_MAY_BE_NONE = frozenset({"seed", "max_tokens", "logprobs"})


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if _is_number(value, low, high):
        return
    wanted = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
    raise OptionError(f"sampling: {name} is {_shown(value)}; give a number {wanted}")


def _check_integer(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Integral):
        raise OptionError(f"sampling: {name} is {_shown(value)}; give a whole number")


def _is_number(value: Any, low: float, high: float) -> bool:
    """Whether it is a finite number in a range; texts and complex numbers are not."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer beyond floats
        return False
    return low <= number <= high and number < math.inf


def _shown(value: object) -> str:
    """A number as it is; anything else so that it cannot be taken for one."""
    return str(value) if isinstance(value, Real) else repr(value)[:80]


def _stops(stop: object) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Iterable):
        raise OptionError(f"sampling: stop is {_shown(stop)}; give a text or a list of texts")
    found = tuple(stops)
    for text in found:
        if not isinstance(text, str) or not text:
            raise OptionError(f"sampling: stop has {text!r}; give texts that are not empty")
    return found


def _biases(biases: object) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise OptionError(f"sampling: logit_bias is {_shown(biases)}; give numbers by token ids")
    for token, bias in biases.items():
        fits = bias == -math.inf or _is_number(bias, -LARGEST, LARGEST)
        if not (isinstance(token, Integral) and _is_number(token, 0, math.inf) and fits):
            raise OptionError(
                f"sampling: logit_bias has {token!r}: {_shown(bias)}; give ids of tokens, each "
                f"with -inf or a number from {-LARGEST:g} to {LARGEST:g}"
            )
    return {int(token): float(bias) for token, bias in biases.items()}


def _check_size(name: str, text: str) -> None:
    if len(text) > MOST_CONSTRAINT:
        raise OptionError(
            f"sampling: {name} has {len(text)} characters, and {MOST_CONSTRAINT} are allowed; "
            "simplify it"
        )


def _schema(schema: Mapping[str, Any] | str) -> dict[str, Any]:
    """The schema as an object."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"sampling: json_schema is not JSON: {error}; correct it") from error
    _check_size("json_schema", text)
    if not isinstance(value, dict):
        raise OptionError(
            f"sampling: json_schema is {json.dumps(value)[:40]}; give an object, such as "
            '{"type": "object"}'
        )
    return value


_DEFAULTS = SamplingParams()
