"""Forms of calls whose arguments are JSON."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensorplug_llm.serve.calls import NoCall, Schemas, call_of
from tensorplug_llm.serve.forms.form import Calls, Literal, decode, named_call
from tensorplug_llm.serve.forms.rules import one_of, schema_rules
from tensorplug_llm.serve.reading import Object
from tensorplug_llm.serve.tools import Tool

MOST_HEAD = 200
"""Characters between the beginning of a call of gpt-oss and its arguments."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Calls in JSON between `begin` and `end`: an object, or a list of them."""

    begin: str
    end: str = ""
    bare: str = ""
    space: str = ""
    """Stands around the JSON in forced calls."""
    arguments: str = "arguments"
    name: str = "name"
    listed: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        return tuple(filter(None, (self.begin, self.end)))

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        start = len(body) - len(body.lstrip())
        if start == len(body):
            return None
        if body[start] not in "[{":
            raise NoCall
        try:
            value, end = decode(body, start)
        except (ValueError, RecursionError):
            return None
        values = value if isinstance(value, list) else [value]
        if not values:
            raise NoCall
        calls = [call_of(one) for one in values]
        rest = body[end:].lstrip()
        if not rest.startswith(self.end):
            if self.end.startswith(rest):
                return None
            raise NoCall
        return calls, len(body) - len(rest) + len(self.end)

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        opening, closing = ("[", "]") if self.listed else ("", "")
        space = json.dumps(self.space)
        begin = "" if self.bare else f"{literal(self.begin)} {space}"
        end = f"{space} {literal(self.end)}" if self.end else ""
        return one_of(
            f"{begin} call {end}",
            [
                json.dumps(f'{opening}{{"{self.name}": "{tool.name}", "{self.arguments}": ')
                + f" arguments_{i} {json.dumps('}' + closing)}"
                for i, tool in enumerate(tools)
            ],
            schema_rules(tools),
        )


@dataclass(frozen=True, slots=True)
class NamedForm:
    """Mistral's newer form: the name of a function, then its arguments in JSON."""

    begin: str = "[TOOL_CALLS]"
    bare: str = ""
    markers: tuple[str, ...] = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        head = r"\s*([\w-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)"
        return named_call(body, head, r"\s*([\w-]+[\[\]\w]*\s*)?")

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        border = literal("[ARGS]")
        calls = [f'"{tool.name}" {border} arguments_{i}' for i, tool in enumerate(tools)]
        return one_of(f"{literal(self.begin)} call", calls, schema_rules(tools))


@dataclass(frozen=True, slots=True)
class HarmonyForm:
    """OpenAI's harmony: a message to a function, whose channel says that it is JSON."""

    begin: str = "to=functions."
    bare: str = ""
    markers: tuple[str, ...] = ("<|channel|>", "<|constrain|>", "<|message|>")

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        head, message, rest = body.partition("<|message|>")
        pattern = (
            r"([\w-]+)\s*(?:<\|channel\|>\s*commentary)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*"
        )
        named = re.fullmatch(pattern, head, re.ASCII)
        if not message:
            if len(head) < MOST_HEAD:
                return None
            raise NoCall
        if named is None:
            raise NoCall
        try:
            arguments, end = decode(rest, len(rest) - len(rest.lstrip()))
        except (ValueError, RecursionError):
            return None
        call = call_of({"name": named[1], "arguments": arguments})
        return [call], len(head) + len(message) + end

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        between = f'{literal("<|channel|>")} "commentary json" {literal("<|message|>")}'
        calls = [f'"{tool.name}" {between} arguments_{i}' for i, tool in enumerate(tools)]
        return one_of(f'" {self.begin}" call', calls, schema_rules(tools))


@dataclass(frozen=True, slots=True)
class LineForm:
    """GLM's first notation: the name of a function in a line, then JSON.

    Templates of GLM-4-0414 take the name as `metadata` of a message, and results as observations;
    several calls as in `GLM4AgentTemplate` of ms-swift, by which models are trained.
    """

    begin: str = "<|assistant|>"
    bare: str = "{name}\n"
    markers: tuple[str, ...] = ("<|assistant|>",)

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of a body and where they end; None while more must come. Raises NoCall."""
        head = r"\s*([\w-]+)[ \t]*\n\s*(?=\{)"
        return named_call(body, head, r"\s*([\w-]+[ \t]*(\n\s*)?)?")

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        calls = [f'"{tool.name}\\n" arguments_{i}' for i, tool in enumerate(tools)]
        return one_of("call", calls, schema_rules(tools))

    def told(self, messages: Iterable[Object]) -> Iterator[Object]:
        """Messages as these templates know them."""
        for message in messages:
            if message["role"] == "tool":
                yield {"role": "observation", "content": message["content"]}
                continue
            calls = message.get("tool_calls") or ()
            if message.get("content") or not calls:
                yield {key: value for key, value in message.items() if key != "tool_calls"}
            for call in calls:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                name = call["function"]["name"]
                yield {"role": "assistant", "metadata": name, "content": arguments}
