"""No two places of core share ten equal lines of code."""

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import tensorplug

ROOT = Path(tensorplug.__file__).parent
EQUAL = 10
"""Lines in a row that must not stand twice."""


def code(text: str) -> Iterator[tuple[int, str]]:
    """The lines that hold code, each with its number: no imports, comments, texts or `__all__`."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        listed = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if listed or words or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.string.strip():
            lines[token.start[0]].append(token.string)
    for number, tokens in sorted(lines.items()):
        # A line with only a bracket says nothing.
        if number not in skipped and (len(tokens) > 1 or tokens[0] not in ("(", ")", "]", "}")):
            yield number, " ".join(tokens)


def repeated(files: dict[str, str]) -> list[str]:
    """Pairs of places that share EQUAL lines, as `file:line file:line`."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, text in files.items():
        lines = list(code(text))
        for start in range(len(lines) - EQUAL + 1):
            window = lines[start : start + EQUAL]
            places[tuple(line for _, line in window)].append((name, window[0][0]))
    return [
        f"{one[0]}:{one[1]} {other[0]}:{other[1]}"
        for found in places.values()
        for one, other in pairwise(found)
    ]


def test_no_two_places_share_ten_lines_of_code() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.rglob("*.py"))
    }

    assert repeated(files) == []


def test_copy_of_ten_lines_is_found_also_with_other_comments() -> None:
    lines = [f"x{i} = {i}" for i in range(EQUAL)]
    copied = "import os\n\n" + "\n\n# a word\n".join(lines)

    assert repeated({"a": "\n".join(lines), "b": copied}) == ["a:1 b:3"]
    assert repeated({"a": "\n".join(lines), "b": "\n".join(lines[1:])}) == []
