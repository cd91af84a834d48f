"""No two places of core share ten equal lines of code, no two of plugins and simt eight."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = {".k", ".cl", ".cu", ".metal", ".h", ".cpp"}
"""Endings of files in languages like C."""


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


def kernel_code(text: str) -> Iterator[tuple[int, str]]:
    """The same of a language like C."""
    for number, line in enumerate(text.splitlines(), 1):
        words = " ".join(line.split("//")[0].removesuffix("\\").split())
        if re.search(r"\w", words) and not words.startswith("#include"):
            yield number, words


def repeated(files: dict[str, Iterable[tuple[int, str]]], equal: int) -> list[str]:
    """Pairs of places that share `equal` lines, as `file:line file:line`."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, numbered in files.items():
        lines = list(numbered)
        for start in range(len(lines) - equal + 1):
            window = lines[start : start + equal]
            places[tuple(line for _, line in window)].append((name, window[0][0]))
    return [
        f"{one[0]}:{one[1]} {other[0]}:{other[1]}"
        for found in places.values()
        for one, other in pairwise(found)
    ]


PLUGINS = ("plugins/*/src", "plugins/native/cpp", "simt/src", "emulator/src")


@pytest.mark.parametrize(
    ("places", "equal"),
    [
        pytest.param(("core/src",), 10, id="core"),
        pytest.param(PLUGINS, 8, id="plugins, simt and emulator", marks=pytest.mark.long),
    ],
)
def test_no_two_places_share_many_lines_of_code(places: tuple[str, ...], equal: int) -> None:
    folders = [folder for place in places for folder in ROOT.glob(place)]
    paths = sorted(path for folder in folders for path in folder.rglob("*"))
    files = {
        path.relative_to(ROOT).as_posix(): (code if path.suffix == ".py" else kernel_code)(
            path.read_text(encoding="utf-8")
        )
        for path in paths
        if path.suffix in {".py", *KERNELS}
    }

    assert len(files) > 100
    assert repeated(files, equal) == []


def test_copy_is_found_also_with_other_comments() -> None:
    lines = [f"x{i} = {i}" for i in range(8)]
    text, copied = "\n".join(lines), "import os\n\n" + "\n\n# a word\n".join(lines)
    in_c = [";\n".join(lines), "#include <a>\n  " + "; // a word\n\n}\n".join(lines)]

    assert repeated({"a": code(text), "b": code(copied)}, 8) == ["a:1 b:3"]
    assert repeated({"a": code(text), "b": code("\n".join(lines[1:]))}, 8) == []
    assert repeated({name: kernel_code(t) for name, t in zip("ab", in_c, strict=True)}, 8) == [
        "a:1 b:2"
    ]
