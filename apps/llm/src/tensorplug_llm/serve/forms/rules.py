"""Rules of grammars for the arguments of functions, by their schemas."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorplug_llm.sampling.grammar import SPACE
from tensorplug_llm.serve.reading import Object, refuse, shown
from tensorplug_llm.serve.tools import Tool

MOST_OPTIONAL = 16
"""Optional arguments of a function that a forced call of FunctionGemma, GLM or LFM2 may give."""
MOST_REFERENCES = 8
"""References from one definition of a schema to the next."""


def one_of(start: str, calls: Sequence[str], rules: Sequence[str]) -> str:
    """A grammar of one of several calls."""
    return "\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *rules])


def schema_rules(tools: Sequence[Tool]) -> list[str]:
    """The rules `arguments_0` and so on."""
    space = {"x-guidance": {"whitespace_pattern": SPACE}}
    return [
        f"arguments_{i}: %json {json.dumps({**_of_an_object(tool.parameters), **space})}"
        for i, tool in enumerate(tools)
    ]


def _of_an_object(parameters: Object) -> Object:
    """The schema for objects only: the arguments of a call are one."""
    kind = parameters.get("type", ["object"])
    may_differ = isinstance(kind, list) and "object" in kind
    return {**parameters, "type": "object"} if may_differ else parameters


def arguments_of(parameters: Object) -> tuple[Mapping[str, Any], list[Any]]:
    """The schemas of a function's arguments, each whole, and which of them must be there."""
    properties, required = (parameters.get(key) for key in ("properties", "required"))
    return (
        {name: _whole(schema, parameters) for name, schema in properties.items()}
        if isinstance(properties, Mapping)
        else {},
        required if isinstance(required, list) else [],
    )


def _whole(schema: Any, root: Object) -> Any:
    """A part of the schema `root` with what it refers to there."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    if '"$ref"' not in json.dumps(schema):
        return schema
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}


def check_names(tool: Tool, names: Iterable[str]) -> None:
    """Refuse names that are not read where a call has no quotes around them."""
    for name in names:
        if not re.fullmatch(r"[\w-]+", name, re.ASCII):
            refuse(
                "tools",
                f"function {tool.name} has an argument {shown(name)}; name it with letters, "
                "digits, _ or -, as calls of this model are forced",
            )


def sequence(required: Sequence[str], optional: Sequence[str]) -> str:
    """Arguments with commas between them: all that are required, then any of the others."""
    if required:
        return ' "," '.join(required) + "".join(f' ("," {pair})?' for pair in optional)
    starts = [
        first + "".join(f' ("," {pair})?' for pair in optional[i:])
        for i, first in enumerate(optional, 1)
    ]
    return f"({' | '.join(starts)})?" if starts else ""
