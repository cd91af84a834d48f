"""Integers of JSON schemas that llguidance would change: it reads them as float64, then int64."""

from collections.abc import Iterator, Mapping
from typing import Any

LARGEST = (1 << 63) - 1
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by names of any kind."""
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_integers(schema: Any) -> None:
    """Raise ValueError where a schema asks for an integer that would come out as another.

    Limits beyond int64 are accepted: texts keep within int64 then.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, Mapping):
            for key, value in part.items():
                if key in NAMED and isinstance(value, Mapping):
                    waiting += value.values()
                elif key in ("const", "enum"):
                    _check(_integers(value))
                elif key in LIMITS:
                    _check(number for number in _integers(value) if abs(number) <= LARGEST)
                elif key not in ("default", "examples"):
                    waiting.append(value)


def _check(integers: Iterator[int]) -> None:
    for integer in integers:
        if abs(integer) > LARGEST or min(int(float(integer)), LARGEST) != integer:
            text = str(integer)
            text = text if len(text) < 40 else f"{text[:30]}..."
            raise ValueError(
                f"has the integer {text}, which would come out as another; use {1 << 53} at most, "
                "or a string"
            )


def _integers(value: Any) -> Iterator[int]:
    """The integers in a value."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, int) and not isinstance(part, bool):
            yield part
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, Mapping):
            waiting += part.values()
