"""Calls in the syntax of Python: LFM2."""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorplug_llm.serve.calls import Call, NoCall, Schemas, call_of
from tensorplug_llm.serve.forms.form import Calls, Literal
from tensorplug_llm.serve.forms.rules import (
    MOST_OPTIONAL,
    check_definitions,
    check_names,
    one_of,
    sequence,
)
from tensorplug_llm.serve.forms.schemas import arguments_of
from tensorplug_llm.serve.tools import Tool


@dataclass(frozen=True, slots=True)
class PythonForm:
    """LFM2's notation: calls of Python, with arguments by name."""

    begin: str = "<|tool_call_start|>"
    end: str = "<|tool_call_end|>"
    bare: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        return (self.begin, self.end)

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        place = body.find(self.end)
        if place < 0:
            return None
        names: dict[str, str] = {}
        text = _PARTS.sub(partial(_as_python, names), body[:place].strip())
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NoCall from None
        calls = tree.elts if isinstance(tree, ast.List) else [tree]
        if not calls:
            raise NoCall
        return [_python_call(call, names) for call in calls], place + len(self.end)

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance. Values are those of JSON."""
        calls, rules = [], list[str]()
        for i, tool in enumerate(tools):
            properties, required = arguments_of(tool.parameters)
            check_names(tool, properties)
            check_definitions(tool, properties)
            pairs = {}
            for j, (name, schema) in enumerate(properties.items()):
                pairs[name] = f"{json.dumps(f'{name}=')} value_{i}_{j}"
                rules.append(f"value_{i}_{j}: %json {json.dumps(schema)}")
            needed = [name for name in pairs if name in required]
            others = [name for name in pairs if name not in needed][:MOST_OPTIONAL]
            given = sequence([pairs[n] for n in needed], [pairs[n] for n in others])
            calls.append(f'"{tool.name}(" {given} ")"')
        return one_of(f'{literal(self.begin)} "[" call "]" {literal(self.end)}', calls, rules)


CONSTANTS = {"true": True, "false": False, "null": None}
"""Names that models write for those of Python."""


_PARTS = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([\w-]+)(?=\s*[(=])""", re.ASCII | re.DOTALL
)
"""Texts in quotes; names of functions and arguments, which need not be names of Python."""


def _as_python(names: dict[str, str], found: re.Match[str]) -> str:
    """A text as Python writes it, if JSON can read it; for a name a new one, noted in `names`."""
    text, name = found.groups()
    if text is None:
        names[made := f"n{len(names)}"] = name
        return made
    try:
        return repr(json.loads(text))
    except ValueError:
        return str(text)


def _python_call(node: ast.expr, names: Mapping[str, str]) -> Call:
    """The call of a function by its name. Raises NoCall."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise NoCall
    name = names.get(node.func.id)
    given = {names.get(pair.arg or ""): _value(pair.value) for pair in node.keywords}
    if name is None or None in given or len(given) < len(node.keywords):
        raise NoCall
    return call_of({"name": name, "arguments": given})


def _value(node: ast.expr) -> Any:
    """What an expression of constants says. Raises NoCall."""
    match node:
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Constant(value=float() as value) if not math.isfinite(value):
            raise NoCall
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            names = [key.value for key in keys if isinstance(key, ast.Constant)]
            if len(names) < len(keys):
                raise NoCall
            return {str(name): _value(part) for name, part in zip(names, values, strict=True)}
        case _:
            raise NoCall
