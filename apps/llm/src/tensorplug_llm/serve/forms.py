"""How families of models write calls: found by their templates, read from answers, forced.

| family | a call |
|---|---|
| Hermes, Qwen | `<tool_call>{"name": "f", "arguments": {}}</tool_call>` |
| Llama 3 | `{"name": "f", "parameters": {}}` as the whole answer, also behind `<|python_tag|>` |
| Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}` |
| Granite, Phi | `<|tool_call|>[{"name": "f", "arguments": {}}]` |
| Command R7B | `<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>` |
| Command R+ | the same behind `Action:` in a block of Markdown |
| GLM 4 | `f`, a line end and `{}`; further calls behind `<|assistant|>` |
| GLM 4.5 and later | `<tool_call>f<arg_key>a</arg_key><arg_value>text</arg_value></tool_call>` |
| LFM2 | `<|tool_call_start|>[f(a="text")]<|tool_call_end|>` |
| gpt-oss | `to=functions.f<|channel|>commentary json<|message|>{}` |
| FunctionGemma | `<start_function_call>call:f{a:<escape>text<escape>}<end_function_call>` |
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tensorplug_llm.sampling.grammar import SPACE
from tensorplug_llm.serve.calls import Call, NoCall, Schemas, call_of
from tensorplug_llm.serve.reading import Object, refuse, shown
from tensorplug_llm.serve.tools import Tool

Literal = Callable[[str], str]
"""Writes a text in a grammar, as a token where it is a control token."""
Calls = tuple[list[Call], int] | None
"""The calls of a body and where they end; None while more must come."""
MOST_OPTIONAL = 16
"""Optional arguments of a function that a forced call of FunctionGemma, GLM or LFM2 may give."""
MOST_REFERENCES = 8
"""References from one definition of a schema to the next."""
MOST_HEAD = 200
"""Characters between the beginning of a call of gpt-oss and its arguments."""

_decode = json.JSONDecoder(strict=False).raw_decode
"""Reads the JSON at a place of a text; models write line ends in strings."""


class Form(Protocol):
    """How the models of one family write calls."""

    @property
    def begin(self) -> str:
        """The text that begins calls."""
        ...

    @property
    def bare(self) -> str:
        """A text that begins calls too where an answer begins with it; it may be empty.

        In it, `{name}` is any function's. Semicolons may stand between these calls, as in answers
        of Llama.
        """
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of calls that may be control tokens."""
        ...

    def read(self, body: str, tools: Schemas) -> Calls:
        """The calls of `tools` behind `begin`. Raises NoCall."""
        ...

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        ...


def form_of(template: str) -> Form | None:
    """How models with this template write calls; None where the template knows no tools."""
    if not re.search(r"\btools\b", template):
        return None
    if "<start_function_call>" in template:
        return GemmaForm()
    if "[TOOL_CALLS]" in template:
        return NamedForm() if "[ARGS]" in template else JsonForm("[TOOL_CALLS]", listed=True)
    if "<|tool_call|>" in template:
        end = "<|/tool_call|>" if "<|/tool_call|>" in template else ""
        return JsonForm("<|tool_call|>", end, listed=True)
    if "<|START_ACTION|>" in template:
        end, keys = "<|END_ACTION|>", {"arguments": "parameters", "name": "tool_name"}
        return JsonForm("<|START_ACTION|>", end, listed=True, **keys)
    if "Action:" in template and "tool_name" in template:
        keys = {"arguments": "parameters", "name": "tool_name"}
        return JsonForm("Action:\n```json\n", "```", listed=True, **keys)
    if "<|tool_list_start|>" in template or "List of tools: [" in template:
        return PythonForm()
    if "<|channel|>" in template and "functions" in template:
        return HarmonyForm()
    if "<|observation|>" in template:
        return _form_of_glm(template)
    has_other_calls = "<function=" in template or "<arg_key>" in template
    if "<tool_call>" in template and not has_other_calls:
        return JsonForm("<tool_call>", "</tool_call>", space="\n")
    if "<|start_header_id|>" in template:
        return JsonForm("<|python_tag|>", bare="{", arguments="parameters")
    return None


def _form_of_glm(template: str) -> Form | None:
    if "<arg_key>" in template:
        return GlmForm("" if "}<arg_key>" in template else "\n")
    return LineForm() if "metadata" in template else None


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
            value, end = _decode(body, start)
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
        return _grammar(
            f"{begin} call {end}",
            [
                json.dumps(f'{opening}{{"{self.name}": "{tool.name}", "{self.arguments}": ')
                + f" arguments_{i} {json.dumps('}' + closing)}"
                for i, tool in enumerate(tools)
            ],
            _schemas(tools),
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
        return _named_call(body, head, r"\s*([\w-]+[\[\]\w]*\s*)?")

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        border = literal("[ARGS]")
        calls = [f'"{tool.name}" {border} arguments_{i}' for i, tool in enumerate(tools)]
        return _grammar(f"{literal(self.begin)} call", calls, _schemas(tools))


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
            arguments, end = _decode(rest, len(rest) - len(rest.lstrip()))
        except (ValueError, RecursionError):
            return None
        call = call_of({"name": named[1], "arguments": arguments})
        return [call], len(head) + len(message) + end

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        between = f'{literal("<|channel|>")} "commentary json" {literal("<|message|>")}'
        calls = [f'"{tool.name}" {between} arguments_{i}' for i, tool in enumerate(tools)]
        return _grammar(f'" {self.begin}" call', calls, _schemas(tools))


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
            properties, required = _arguments(tool.parameters)
            _check_names(tool, properties)
            pairs = {}
            for j, (name, schema) in enumerate(properties.items()):
                pairs[name] = f"{json.dumps(f'{name}=')} value_{i}_{j}"
                rules.append(f"value_{i}_{j}: %json {json.dumps(schema)}")
            needed = [name for name in pairs if name in required]
            others = [name for name in pairs if name not in needed][:MOST_OPTIONAL]
            given = _sequence([pairs[n] for n in needed], [pairs[n] for n in others])
            calls.append(f'"{tool.name}(" {given} ")"')
        return _grammar(f'{literal(self.begin)} "[" call "]" {literal(self.end)}', calls, rules)


CONSTANTS = {"true": True, "false": False, "null": None}
"""Names that models write for those of Python."""


_PARTS = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([\w-]+)(?=\s*[(=])""", re.ASCII | re.DOTALL
)
"""Texts in quotes; names of functions and arguments, which need not be names of Python."""


def _named_call(body: str, head: str, unfinished: str) -> Calls:
    """The call whose name is the group of `head`, with its arguments in JSON behind that.

    None while the name, as far as `unfinished` matches it, or the JSON goes on. Raises NoCall.
    """
    named = re.match(head, body, re.ASCII)
    if named is None:
        if re.fullmatch(unfinished, body, re.ASCII):
            return None
        raise NoCall
    try:
        arguments, end = _decode(body, named.end())
    except (ValueError, RecursionError):
        return None
    return [call_of({"name": named[1], "arguments": arguments})], end


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
            properties, required = _arguments(tool.parameters)
            _check_names(tool, properties)
            needed = [name for name in properties if name in required]
            others = [name for name in properties if name not in needed][:MOST_OPTIONAL]
            given = _sequence(
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
        return _grammar(start, calls, values)


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
        return _named_call(body, head, r"\s*([\w-]+[ \t]*(\n\s*)?)?")

    def grammar(self, tools: Sequence[Tool], literal: Literal) -> str:
        """A text that calls one of the tools, for llguidance."""
        calls = [f'"{tool.name}\\n" arguments_{i}' for i, tool in enumerate(tools)]
        return _grammar("call", calls, _schemas(tools))

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
        properties, _ = _arguments(tools.get(named[1], {}))
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
            properties, required = _arguments(tool.parameters)
            pairs = {}
            for j, (name, schema) in enumerate(properties.items()):
                begin = f"{key} {json.dumps(name)} {key_end} {line} {value}"
                pairs[name] = f"{begin} value_{i}_{j} {value_end} {line}"
                rules.append(f"value_{i}_{j}: {_plain_value(schema)}")
            needed = [pairs[name] for name in pairs if name in required]
            others = [pairs[name] for name in pairs if name not in required][:MOST_OPTIONAL]
            given = " ".join([*needed, *(f"({pair})?" for pair in others)])
            calls.append(f'"{tool.name}" {line} {given}')
        return _grammar(f"{literal(self.begin)} call {literal(self.end)}", calls, rules)


def _typed(text: str, schema: Any) -> Any:
    """A value that is written without quotes where it is a text, by its schema."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds and (text != "null" or "null" not in kinds):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_number = not isinstance(value, float) or math.isfinite(value)
    return text if isinstance(value, str) or not is_number else value


def _plain_value(schema: Any) -> str:
    """The rule of a value that is written without quotes where it is a text."""
    if not isinstance(schema, Mapping) or schema.get("type", "string") == "string":
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        texts = [json.dumps(str(option)) for option in options or ()]
        return f"({' | '.join(texts)})" if texts else "TEXT"
    return f"%json {json.dumps(schema)}"


def _grammar(start: str, calls: Sequence[str], rules: Sequence[str]) -> str:
    """A grammar of one of several calls."""
    return "\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *rules])


def _schemas(tools: Sequence[Tool]) -> list[str]:
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


PLAIN = {"string": "text", "integer": "INTEGER", "number": "NUMBER", "boolean": "BOOLEAN"}


def _pair(name: str, schema: Any, quote: str) -> str:
    """The rule of an argument."""
    schema = schema if isinstance(schema, Mapping) else {}
    kind, options = schema.get("type"), schema.get("enum")
    value = PLAIN.get(kind, "value") if isinstance(kind, str) else "value"
    if value == "text" and isinstance(options, list) and options:
        texts = " | ".join(json.dumps(str(option)) for option in options)
        value = f"{quote} ({texts}) {quote}"
    return f"{json.dumps(f'{name}:')} {value}"


def _arguments(parameters: Object) -> tuple[Mapping[str, Any], list[Any]]:
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


def _check_names(tool: Tool, names: Iterable[str]) -> None:
    """Refuse names that are not read where a call has no quotes around them."""
    for name in names:
        if not re.fullmatch(r"[\w-]+", name, re.ASCII):
            refuse(
                "tools",
                f"function {tool.name} has an argument {shown(name)}; name it with letters, "
                "digits, _ or -, as calls of this model are forced",
            )


def _sequence(required: Sequence[str], optional: Sequence[str]) -> str:
    """Arguments with commas between them: all that are required, then any of the others."""
    if required:
        return ' "," '.join(required) + "".join(f' ("," {pair})?' for pair in optional)
    starts = [
        first + "".join(f' ("," {pair})?' for pair in optional[i:])
        for i, first in enumerate(optional, 1)
    ]
    return f"({' | '.join(starts)})?" if starts else ""
