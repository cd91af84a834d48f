"""What the schemas of a function's arguments say of the kinds of their values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorplug_llm.serve.reading import Object

MOST_REFERENCES = 8
"""References from one definition of a schema to the next."""


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
    schema = _followed(schema, root)
    if '"$ref"' not in json.dumps(schema):
        return schema
    return {**definitions(root), **schema}


def definitions(root: Object) -> Object:
    """What parts of a schema may refer to."""
    return {key: root[key] for key in ("$defs", "definitions") if key in root}


def _followed(schema: Any, root: Object) -> Any:
    """A part of the schema `root`, without a reference at its top."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def alternatives(schema: Any) -> list[Object]:
    """The schemas in `anyOf` or `oneOf` of a whole schema, or the schema; {} allows everything."""
    root = schema if isinstance(schema, Mapping) else {}
    found, waiting, seen = list[Object](), [schema], set[str]()
    while waiting:
        part = waiting.pop()
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(reference, str) and reference in seen:
            continue
        seen.add(str(reference))
        part = _followed(part, root)
        part = part if isinstance(part, Mapping) else {}
        parts = part.get("anyOf", part.get("oneOf"))
        if isinstance(parts, list) and parts:
            waiting += reversed(parts)
        else:
            found.append(part)
    return found


def kinds_of(schema: Object) -> frozenset[str]:
    """The types that a schema without alternatives allows by `type`; none where it names none."""
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    return frozenset(name for name in names if isinstance(name, str))


def options_of(schema: Object) -> list[Any] | None:
    """The values in `enum` or `const` of a schema that its type allows; None where it has none."""
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(options, list):
        return None
    kinds = kinds_of(schema)
    return [option for option in options if not kinds or kinds & kinds_of_value(option)]


def texts_of(parts: Sequence[Object]) -> list[str] | None:
    """The texts that alternatives of a schema allow; None for any text."""
    texts = list[str]()
    for part in parts:
        options = options_of(part)
        if options is None and "string" in (kinds_of(part) or {"string"}):
            return None
        texts += [option for option in options or () if isinstance(option, str)]
    return texts


def others_of(parts: Sequence[Object]) -> Iterator[Object]:
    """What alternatives of a schema allow that is not a text."""
    for part in parts:
        options = options_of(part)
        kinds = kinds_of(part) - {"string"}
        if options is not None:
            if others := [option for option in options if not isinstance(option, str)]:
                yield {**part, "enum": others}
        elif kinds:
            yield {**part, "type": sorted(kinds)}


def kinds_of_value(value: Any) -> set[str]:
    """The types of JSON schema of a value."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}
