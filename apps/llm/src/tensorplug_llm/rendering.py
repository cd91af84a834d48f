"""Renders a chat template, here or in a process of its own under limits of time and memory.

Templates come with models from anywhere. The sandbox keeps them from files and objects, but a loop
or a product in one can take any time and memory, so `tensorplug_llm.chat` runs this file by
`tensorplug_llm.limited`. It imports nothing else of the package: that would take longer than
rendering.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_TEXT = 16 << 20
"""Characters of the longest prompt."""
MOST_WORDS = 300
"""Characters of an error's text that are passed on."""


def answer(source: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Render a template: its `text`, or why there is none, as plain data.

    `refused`: the reason with which the template rejects the values; `broken`: its syntax error;
    `failed`: the exception that it raised.
    """
    try:
        template = _compiled(source)
    except Exception as error:  # noqa: BLE001 - deep nesting and lone surrogates fail in Python's compiler
        line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        return {"broken": f"{line}{_quoted(error)}"}
    try:
        text = template.render(values)
    except _Refused as refusal:
        return {"refused": _quoted(refusal)}
    except Exception as error:  # noqa: BLE001 - a template can raise anything that an expression can
        return {"failed": f"{type(error).__name__} {_quoted(error)}".rstrip()}
    if len(text) > MOST_TEXT:
        return {"failed": f"its prompt has {len(text)} characters, and {MOST_TEXT} are allowed"}
    return {"text": text}


def _quoted(error: Exception) -> str:
    """The text of an error in quotes, with escapes for control characters; it may be empty."""
    text = str(error)
    shown = f"{text[:MOST_WORDS]}..." if len(text) > MOST_WORDS else text
    return repr(shown) if shown else ""


class _Refused(Exception):
    """Raised by the template itself, through `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}`: marks replies for training and means nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, **options: Any) -> str:
    # Jinja2's own filter escapes for HTML.
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(reason: object) -> NoReturn:
    raise _Refused(reason)


def _now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
