"""Calls in a notation of its own, with arguments in braces: FunctionGemma."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorplug_llm.serve.calls import NoCall, Schemas, call_of
from tensorplug_llm.serve.forms.form import Calls, Literal
from tensorplug_llm.serve.forms.rules import (
    MOST_OPTIONAL,
    check_names,
    one_of,
    sequence,
)
from tensorplug_llm.serve.forms.schemas import alternatives, arguments_of, kinds_of, options_of
from tensorplug_llm.serve.reading import Object
from tensorplug_llm.serve.tools import Tool


@dataclass(frozen=True, slots=True)
class GemmaForm:
    """FunctionGemma's own notation: keys without quotes, texts between `<escape>`."""

    begin: str = "<start_function_call>"
    end: str = "<end_function_call>"
    bare: str = ""
    quote: str = "<escape>"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        return (self.begin, self.end, self.quote)

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        place = body.find(self.end)
        if place < 0:
            return None
        named = re.fullmatch(r"\s*call:([\w-]+)(\{.*\})\s*", body[:place], re.ASCII | re.DOTALL)
        if named is None:
            raise NoCall
        try:
            arguments = json.loads(self._as_json(named[2]))
        except (ValueError, RecursionError):
            raise NoCall from None
        call = call_of({"name": named[1], "arguments": arguments})
        return [call], place + len(self.end)

    def _as_json(self, text: str) -> str:
        """The notation as JSON: every second part between quotes is a text."""
        parts = text.split(self.quote)
        keys = re.compile(r"([{,]\s*)([\w.-]+)(\s*:)", re.ASCII)
        parts[::2] = [keys.sub(r'\1"\2"\3', part) for part in parts[::2]]
        parts[1::2] = [json.dumps(part) for part in parts[1::2]]
        return "".join(parts)

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance.

        Names of arguments, and types of those that are plain, follow the schema.
        """
        quote = literal(self.quote)
        calls = []
        for tool in tools:
            properties, required = arguments_of(tool.parameters)
            check_names(tool, properties)
            needed = [name for name in properties if name in required]
            others = [name for name in properties if name not in needed][:MOST_OPTIONAL]
            given = sequence(
                [_pair(name, properties[name], quote) for name in needed],
                [_pair(name, properties[name], quote) for name in others],
            )
            calls.append(f'"{tool.name}" "{{" {given} "}}"')
        values = [
            f"text: {quote} TEXT {quote}",
            "value: text | NUMBER | BOOLEAN | list | object",
            'list: "[" (value ("," value)*)? "]"',
            'object: "{" (KEY ":" value ("," KEY ":" value)*)? "}"',
            "TEXT: /[^<]+/",
            "KEY: /[a-zA-Z_][a-zA-Z0-9_]{0,40}/",
            "INTEGER: /-?(0|[1-9][0-9]{0,15})/",
            r"NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/",
            'BOOLEAN: "true" | "false"',
        ]
        start = f'{literal(self.begin)} "call:" call {literal(self.end)}'
        return one_of(start, calls, values)


RULES = {
    "string": "text",
    "integer": "INTEGER",
    "number": "NUMBER",
    "boolean": "BOOLEAN",
    "null": '"null"',
    "array": "list",
    "object": "object",
}
"""The rule of each type."""


def _pair(name: str, schema: Any, quote: str) -> str:
    """The rule of an argument."""
    parts = alternatives(schema)
    values = [value for part in parts for value in _values(part, quote)]
    return f"{json.dumps(f'{name}:')} ({' | '.join(values or ['value'])})"


def _values(part: Object, quote: str) -> list[str]:
    """The rules of what a schema without alternatives allows."""
    options = options_of(part)
    if options is None:
        return [RULES.get(kind, "value") for kind in sorted(kinds_of(part))] or ["value"]
    return [
        f"{quote} {json.dumps(option)} {quote}"
        if isinstance(option, str)
        else json.dumps(json.dumps(option))
        for option in options
        if not isinstance(option, list | dict)
    ]
