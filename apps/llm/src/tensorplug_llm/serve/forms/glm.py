"""Calls with a tag for each argument: GLM 4.5 and later."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorplug_llm.serve.calls import NoCall, Schemas, call_of
from tensorplug_llm.serve.forms.form import Calls, Literal
from tensorplug_llm.serve.forms.rules import MOST_OPTIONAL, check_definitions, one_of
from tensorplug_llm.serve.forms.schemas import (
    alternatives,
    arguments_of,
    definitions,
    kinds_of,
    kinds_of_value,
    options_of,
    others_of,
    texts_of,
)
from tensorplug_llm.serve.tools import Tool

_GLM_PAIR = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>((?:(?!</arg_value>).)*)</arg_value>\s*", re.DOTALL
)
"""An argument; it can be read in one way only, so that no text takes long."""
_GLM_CALL = re.compile(rf"\s*([\w-]+)\s*((?:{_GLM_PAIR.pattern})*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class GlmForm:
    """GLM's notation: texts without quotes, and JSON for all other values (template of GLM-4.6)."""

    line: str
    """Stands between the parts of a call; that of GLM-4.7 has none."""
    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    bare: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        return (self.begin, self.end, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        place = body.find(self.end)
        if place < 0:
            return None
        named = _GLM_CALL.fullmatch(body, 0, place)
        if named is None:
            raise NoCall
        properties, _ = arguments_of(tools.get(named[1], {}))
        arguments = {
            pair[1]: _typed(pair[2], properties.get(pair[1]))
            for pair in _GLM_PAIR.finditer(named[2])
        }
        return [call_of({"name": named[1], "arguments": arguments})], place + len(self.end)

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance.

        Texts are those of an enumeration or any without a `<`; other values follow their schema.
        """
        line, calls, rules = json.dumps(self.line), [], ["TEXT: /[^<]*/"]
        marks = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
        key, key_end, value, value_end = map(literal, marks)
        for i, tool in enumerate(tools):
            properties, required = arguments_of(tool.parameters)
            check_definitions(tool, properties)
            pairs = {}
            for j, (name, schema) in enumerate(properties.items()):
                begin = f"{key} {json.dumps(name)} {key_end} {line} {value}"
                pairs[name] = f"{begin} value_{i}_{j} {value_end} {line}"
                rules.append(f"value_{i}_{j}: {_plain_value(schema)}")
            needed = [pairs[name] for name in pairs if name in required]
            others = [pairs[name] for name in pairs if name not in required][:MOST_OPTIONAL]
            given = " ".join([*needed, *(f"({pair})?" for pair in others)])
            calls.append(f'"{tool.name}" {line} {given}')
        return one_of(f"{literal(self.begin)} call {literal(self.end)}", calls, rules)


def _typed(text: str, schema: Any) -> Any:
    """A value that is written without quotes where it is a text, by its schema.

    Where a schema allows texts and other values, null, lists and objects are read as these.
    """
    parts, value = alternatives(schema), _parsed(text)
    texts = texts_of(parts)
    if texts is not None:
        return text if text in texts else value
    if not all(kinds_of(part) or options_of(part) for part in parts):
        return value
    allowed = frozenset[str]().union(*map(kinds_of, parts))
    return value if allowed & kinds_of_value(value) & {"null", "array", "object"} else text


def _parsed(text: str) -> Any:
    """The value that JSON says, other than a text; else the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_number = not isinstance(value, float) or math.isfinite(value)
    return text if isinstance(value, str) or not is_number else value


def _plain_value(schema: Any) -> str:
    """The rule of a value that is written without quotes where it is a text."""
    parts = alternatives(schema)
    texts = texts_of(parts)
    if texts is None:
        return "TEXT"
    if not texts:
        return f"%json {json.dumps(schema)}"
    values = [json.dumps(text) for text in texts]
    if others := list(others_of(parts)):
        values.append(f"%json {json.dumps({'anyOf': others, **definitions(schema)})}")
    return f"({' | '.join(values)})"
