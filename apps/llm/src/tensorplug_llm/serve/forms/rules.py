"""Rules of grammars for the arguments of functions, by their schemas."""

import json
import re
from collections.abc import Iterable, Sequence

from tensorplug_llm.sampling.grammar import SPACE
from tensorplug_llm.serve.forms.schemas import definitions
from tensorplug_llm.serve.reading import Object, refuse, shown
from tensorplug_llm.serve.tools import Tool

MOST_OPTIONAL = 16
"""Optional arguments of a function that a forced call of FunctionGemma, GLM or LFM2 may give."""
MOST_DEFINITIONS = 1 << 20
"""Characters of the definitions of a function, times its arguments, in a forced call."""


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


def check_names(tool: Tool, names: Iterable[str]) -> None:
    """Refuse names that are not read where a call has no quotes around them."""
    for name in names:
        if not re.fullmatch(r"[\w-]+", name, re.ASCII):
            refuse(
                "tools",
                f"function {tool.name} has an argument {shown(name)}; name it with letters, "
                "digits, _ or -, as calls of this model are forced",
            )


def check_definitions(tool: Tool, arguments: Object) -> None:
    """Refuse definitions that would be repeated for many arguments, each with its own rule."""
    size = len(json.dumps(definitions(tool.parameters)))
    if size * len(arguments) > MOST_DEFINITIONS:
        refuse(
            "tools",
            f"function {tool.name} has definitions of {size} characters and {len(arguments)} "
            f"arguments, more than {MOST_DEFINITIONS} together; give it fewer",
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
