"""Reads JSON of clients: the fields of objects and plain values. Raises ServeError."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.limits import Limits, read_body

T = TypeVar("T")
Object = Mapping[str, Any]

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
)
"""Fields that change no token of an answer."""


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ServeError(400, "body: has half of a surrogate pair; send whole characters") from None
    except UnicodeDecodeError as error:
        raise ServeError(400, f"body: is not UTF-8 ({error.reason}); send UTF-8") from None
    except RecursionError:
        raise ServeError(400, "body: is nested too deeply; send fewer levels") from None
    except ValueError as error:
        raise ServeError(400, f"body: is not JSON: {str(error)[:200]}; correct it") from None
    if not isinstance(value, dict):
        raise ServeError(400, f"body: is {kind(value)}; send a JSON object")
    return value


async def read_object(chunks: AsyncIterator[bytes], limits: Limits) -> dict[str, Any]:
    """The JSON object of a body that arrives."""
    return parse(await read_body(chunks, limits))


def find_model(models: Mapping[str, T], name: str | None, why: str, none: str) -> T:
    """The model of this name, or the first one where a client names none."""
    if name is None and models:
        return next(iter(models.values()))
    if name is None or name not in models:
        known = ", ".join(models) or none
        raise ServeError(
            404,
            f"model: {(name or '')[:80]!r} {why} {known}",
            param="model",
            code="model_not_found",
        )
    return models[name]


class Fields:
    """The fields of an object; each is taken once, and none may be left."""

    def __init__(self, values: Object, within: str = "") -> None:
        """`within` is the name of the object, where it is part of another."""
        self._left = dict(values)
        self._within = f"{within}." if within else ""

    def take(self, name: str, read: Callable[[str, Any], T]) -> T | None:
        """The value of a field, or None where it is not there or null."""
        value = self._left.pop(name, None)
        return None if value is None else read(self._within + name, value)

    def given(self, name: str, read: Callable[[str, Any], T]) -> T:
        """The value of a field that must be there."""
        value = self.take(name, read)
        if value is None:
            name = self._within + name
            raise ServeError(
                400, f"{name}: is missing; send it", param=name, code="missing_required_parameter"
            )
        return value

    def check_empty(self) -> None:
        """Refuse fields that nothing has taken, unless they are null."""
        given = {name for name, value in self._left.items() if value is not None}
        for name in given - IGNORED:
            name = self._within + name
            raise ServeError(
                400,
                f"{shown(name)}: this server does not know the parameter; leave it out",
                param=name[:40],
                code="unknown_parameter",
            )


def anything(name: str, value: Any) -> Any:  # noqa: ARG001 - a reader of fields
    """Any JSON."""
    return value


def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        refuse(name, f"is {kind(value)}; give a text")
    return value


def boolean(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(name, f"is {kind(value)}; give true or false")
    return value


def integer(name: str, value: Any) -> int:
    """A whole number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        refuse(name, f"is {kind(value)}; give a whole number of 64 bits")
    return value


def number(name: str, value: Any) -> float:
    """A number up to 1e30."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30:
        refuse(name, f"is {kind(value)}; give a number up to 1e30")
    return float(value)


def json_object(name: str, value: Any) -> Object:
    """An object."""
    if not isinstance(value, dict):
        refuse(name, f"is {kind(value)}; give an object")
    return value


def fields(name: str, value: Any) -> Fields:
    """The fields of an object."""
    return Fields(json_object(name, value), name)


def refuse(name: str, why: str) -> NoReturn:
    """Refuse the value of a parameter."""
    raise ServeError(400, f"{name}: {why}", param=name, code="invalid_value")


def unsupported(name: str) -> NoReturn:
    """Refuse a parameter of OpenAI's API that this server does not have."""
    raise ServeError(
        400,
        f"{name}: this server does not support it; leave it out",
        param=name,
        code="unsupported_parameter",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def shown(value: Any) -> str:
    """A value in an error, cut."""
    return repr(value)[:40]


def kind(value: Any) -> str:
    """A value in an error: its type where it is long."""
    if value is None or isinstance(value, bool | int | float):
        return shown(value)
    names: Sequence[tuple[type, str]] = ((str, "a text"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind) and value), "empty")
