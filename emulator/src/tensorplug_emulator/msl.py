"""Texts in Metal Shading Language: the heads of their kernels."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(")
_ATTRIBUTE = re.compile(r"\[\[\s*(\w+)(?:\s*\(\s*(\w+)\s*\))?\s*\]\]\s*$")
_DECLARED = re.compile(r"(.*?)(\w+)$", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a kernel is given: `kind` is the type as it is written, `place` that of a buffer."""

    kind: str
    name: str
    attribute: str
    place: int = -1


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a kernel."""

    name: str
    parameters: tuple[Parameter, ...]


def heads(text: str) -> list[Head]:
    """The heads of all kernels of a text. Raises ValueError for a head that is not valid."""
    macros = dict(_MACRO.findall(text))
    found = ((match[1], _between(text, match.end())) for match in _HEAD.finditer(text))
    return [Head(name, tuple(_parameters(name, inner, macros))) for name, inner in found]


def _between(text: str, start: int) -> str:
    """From `start` to the bracket that closes the one before it."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return text[start:at]
    raise ValueError("the head of a kernel has no end")


def _parameters(kernel: str, inner: str, macros: dict[str, str]) -> Iterator[Parameter]:
    for piece in _split(inner):
        declared = piece.strip()
        if declared in macros:  # a list of parameters by one name
            yield from _parameters(kernel, macros[declared], macros)
            continue
        attribute = _ATTRIBUTE.search(declared)
        parts = _DECLARED.match(declared[: attribute.start()].strip()) if attribute else None
        if attribute is None or parts is None:
            raise ValueError(f"kernel {kernel}: parameter {declared!r} has no attribute")
        place = int(attribute[2]) if attribute[2] else -1
        yield Parameter(parts[1].strip(), parts[2], attribute[1], place)


def _split(inner: str) -> list[str]:
    """Parameters between commas that are in no brackets."""
    pieces, depth = [""], 0
    for letter in inner:
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(letter, 0)
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece for piece in pieces if piece.strip()]
