"""No riddles: phrases that hide what a sentence is about, in comments, texts and documents."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_READ = {"tests/test_words.py"}
PRINTED = {"pyproject.toml", "tests/tiers.toml"}
"""Tables whose texts pytest prints."""

RIDDLES = {
    r"anew": "say `again`, or name what is rebuilt",
    r"alone": "say `only` or `by itself`",
    r"so many": "name the number: `n_tasks calls`, `size bytes`",
    r"as many(?!(?: [\w-]+){0,3} as\b)": "name the number, or compare: `as many rows as columns`",
    r"whom": "name the thing: `the stream that waits`",
    r"(?-i:Who)|(?:(?<=[.,:;(] )|(?<=\b(?:of|by|to|so) )|(?<=\b(?:say|see) )"
    r"|(?<=\b(?:says|tell|know) )|(?<=\b(?:tells|knows) ))who": "name the thing: `the stream that`",
    r"(?:no|some)body": "name the thing: `no stream`, `another thread`, `the caller`",
    r"(?<!\bthere )(?:is|are|was|were) no(?! (?:longer|more|less|fewer)\b)": "say `is not a`",
    r"(?:do|does|did) so": "repeat the verb",
    r"the like": "name the kind: `and other limits of threads`",
    r"beside": "say `next to`, `in parallel with` or `in addition to`",
    r"(?<!\bno )such(?! (?:as|an?)\b)": "name it again, or say `of this kind`",
    r"but for": "say `except`",
    r"the same of the same": "say `deterministic` or `the same result from the same input`",
    r"may not": "say `must not` (forbidden) or `might not` (possible)",
    r"means? to": "name the action, or say `is about to`",
    r"to be had": "say `available`",
    r"c[ao]mes? about": "say `happens` or `was stored`",
    r"(?:here|there|where)(?:of|in|upon)|whence|whither|lest": "say it plainly",
}
ANY = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in RIDDLES), re.IGNORECASE)
EACH = {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): cure for phrase, cure in RIDDLES.items()}

C_LIKE = {".c", ".cl", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".k", ".metal"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NAME = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def blank(found: re.Match[str]) -> str:
    """Only the line ends of a match, so that lines keep their numbers."""
    return "\n" * found[0].count("\n")


def kind_of(name: str) -> str:
    """The suffix of a file. A template of `tensorplug new-backend` has `.txt` behind it."""
    return Path(name.removesuffix(".txt")).suffix


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The texts of a file that people read, each with the number of its first line."""
    kind = kind_of(name)
    if kind == ".md":
        yield 1, FENCE.sub(blank, text)
    elif kind == ".toml":
        yield 1, text
    elif kind == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type in STRINGS and " " in token.string):
                yield token.start[0], token.string.lstrip("#\"' ")
    else:
        for comment in COMMENT.finditer(text):
            yield text.count("\n", 0, comment.start()) + 1, comment[0].lstrip("/* ")


def riddles(name: str, text: str) -> list[str]:
    """`line: phrase; cure` for each riddle in a file; names in backticks are not looked at."""
    if not ANY.search(text):
        return []
    found = []
    for first, passage in prose(name, text):
        plain = NAME.sub("_", passage)
        for phrase, cure in EACH.items():
            for hit in phrase.finditer(plain):
                line = first + plain.count("\n", 0, hit.start())
                found.append((line, f"{name}:{line}: `{hit[0]}`; {cure}"))
    return [text for _, text in sorted(found)]


def texts() -> Iterator[tuple[str, str]]:
    """The names and contents of the files of the checkout that have prose."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        file = ROOT / name
        read = kind_of(name) in {".md", ".py", *C_LIKE} or name in PRINTED
        if read and name not in NOT_READ and file.is_file():
            yield name, file.read_text(encoding="utf-8")


def test_no_file_has_riddles() -> None:
    found = [hit for name, text in texts() for hit in riddles(name, text)]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "line", "phrase"),
    [
        ("a.py", "x = 1  # built anew\n", 1, "anew"),
        ("a.py", '"""Adds.\n\nWho waits comes last.\n"""\n', 3, "Who"),
        ("a.py", 'raise E(f"{x} is no float")\n', 1, "is no"),
        ("a.py", "# it is no buffer\n", 1, "is no"),
        ("a.md", "# T\n\nIt runs beside it.\n", 3, "beside"),
        ("a.toml", "x = 'runs beside y'\n", 1, "beside"),
        ("a.py.txt", "x = 1  # built anew\n", 1, "anew"),
        ("a.cpp", "int a;\n/* x\n   so many */\n", 3, "so many"),
        ("a.k", "f(); // but for the last\n", 1, "but for"),
    ],
)
def test_riddle_is_found_with_its_line(name: str, text: str, line: int, phrase: str) -> None:
    (found,) = riddles(name, text)

    assert found.startswith(f"{name}:{line}: `{phrase}`; ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "anew = alone  # calls `anew`\n"),
        ("a.py", "# there is no row, no such file, ops such as add, such a name\n"),
        ("a.py", "# it is no longer open and is no more than 3\n"),
        ("a.md", "```python\nalone()\n```\n"),
        ("a.cpp", "int alone; // as many rows as columns\n"),
    ],
)
def test_code_and_plain_sentences_are_left_in_peace(name: str, text: str) -> None:
    assert riddles(name, text) == []
