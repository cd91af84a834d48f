"""`Tools`: the functions that a model may call in an answer. Raises ServeError."""

import re
from dataclasses import dataclass
from typing import Any

from tensorplug_llm.serve import reading
from tensorplug_llm.serve.reading import Fields, Object, kind, refuse, shown

MOST_TOOLS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function: its name, the JSON schema of its arguments, and what the template is told."""

    name: str
    parameters: Object
    told: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The functions of a request; one of those in `forced` must be called, if there are any."""

    tools: tuple[Tool, ...]
    forced: tuple[Tool, ...]
    parallel: bool
    """Whether an answer may have several calls."""


def tools_of(fields: Fields) -> Tools | None:
    """Take the fields of tools; None where the model shall call nothing."""
    tools = fields.take("tools", _tools) or ()
    choice = fields.take("tool_choice", reading.anything)
    parallel = fields.take("parallel_tool_calls", reading.boolean)
    names = [tool.name for tool in tools]
    if len({*names}) < len(names):
        refuse("tools", "has two functions of one name; rename one")
    if choice == "none" or (not tools and choice in (None, "auto")):
        return None
    if not tools:
        refuse("tool_choice", "is there without tools; give tools")
    forced: tuple[Tool, ...] = ()
    if choice == "required":
        forced = tools
    elif isinstance(choice, dict):
        forced = tuple(tool for tool in tools if tool.name == _chosen(choice))
        if not forced:
            refuse("tool_choice", f"names {shown(_chosen(choice))}; choose one of the tools")
    elif choice not in (None, "auto"):
        refuse("tool_choice", f"is {shown(choice)}; give none, auto, required or a function's name")
    return Tools(tools=tools, forced=forced, parallel=parallel is not False)


def _chosen(choice: Object) -> str:
    fields = reading.fields("tool_choice", choice)
    if fields.take("type", reading.text) != "function":
        refuse("tool_choice", "has another type than function; name a function")
    function = fields.given("function", reading.fields)
    fields.check_empty()
    name = function.given("name", reading.text)
    function.check_empty()
    return name


def _tools(name: str, value: Any) -> tuple[Tool, ...]:
    if not isinstance(value, list):
        refuse(name, f"is {kind(value)}; give a list of functions")
    if len(value) > MOST_TOOLS:
        refuse(name, f"has {len(value)} functions; {MOST_TOOLS} are allowed")
    return tuple(_tool(f"{name}[{i}]", tool) for i, tool in enumerate(value))


def _tool(where: str, value: Any) -> Tool:
    fields = reading.fields(where, value)
    if (sort := fields.take("type", reading.text)) != "function":
        refuse(f"{where}.type", f"is {shown(sort)}; give function")
    function = fields.given("function", reading.fields)
    fields.check_empty()
    name = function.given("name", reading.text)
    if not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII):
        refuse(f"{where}.function.name", f"is {shown(name)}; give up to 64 letters, digits, _ or -")
    description = function.take("description", reading.text) or ""
    parameters = function.take("parameters", reading.json_object)
    function.take("strict", reading.boolean)  # calls that are forced follow their schema
    function.check_empty()
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    told = {"name": name, "description": description, "parameters": parameters}
    return Tool(name=name, parameters=parameters, told={"type": "function", "function": told})
