"""docs/from-ggml.md names every item of ggml's interface once, and only symbols that exist."""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "from-ggml.md"


class Row(NamedTuple):
    """One item of ggml's interface."""

    ggml: str
    here: str
    remark: str
    id: str


STANDINS = [ROOT / "plugins" / name / "tests" / "standin" for name in ("cuda", "metal")]
ITEM = re.compile(r"\|.* [ABC]-\w+-\d+ \|")
LINES = PAGE.read_text(encoding="utf-8").splitlines()
TABLES = [
    [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]
    for is_row, lines in groupby(LINES, lambda line: bool(ITEM.fullmatch(line)))
    if is_row
]
ROWS = [row for table in TABLES for row in table]
GROUPS = {
    "TY": 14, "BT": 7, "BU": 15, "MB": 5, "TA": 5, "BE": 9, "GP": 4, "CP": 4, "EV": 5, "DV": 16,
    "RG": 8, "RE": 10, "DL": 7, "CPU": 13, "SA": 14, "SP": 14, "SX": 6, "SE": 3, "GC": 7, "ME": 7,
    "MT": 13,
}  # fmt: skip
LATER = {"UI": 25, "UR": 12, "US": 20, "UM": 14, "UP": 20, "UG": 8}
"""Groups of what ggml has gained since, with the numbers of their rows."""
SYMBOLS = sorted({s for row in ROWS for s in re.findall(r"`([\w.]+)`", row.here)})


def exists(path: str) -> bool:
    """Whether a dotted path below `tensorplug` or a plugin names something."""
    names = (path if path.startswith("tensorplug_") else f"tensorplug.{path}").split(".")
    depth = max(i for i in range(1, len(names) + 1) if find_module(".".join(names[:i])))
    found: object = import_module(".".join(names[:depth]))
    for name in names[depth:]:
        declared = inspect.isclass(found) and any(
            name in inspect.get_annotations(base) for base in found.__mro__
        )
        if not hasattr(found, name):
            return declared
        found = getattr(found, name)
    return True


def find_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbol_exists(symbol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Modules of these backends import CuPy and PyObjC, which need not be here.
    for folder in STANDINS:
        monkeypatch.syspath_prepend(str(folder))

    assert exists(symbol)


def test_every_row_of_the_interface_stands_there_once() -> None:
    expected = [f"A-{group}-{i:02}" for group, n in GROUPS.items() for i in range(1, n + 1)]

    assert sorted(row.id for row in ROWS if row.id.startswith("A-")) == sorted(expected)


def test_every_row_of_what_came_later_stands_there_once() -> None:
    expected = {f"B-{group}-{i:02}" for group, n in LATER.items() for i in range(1, n + 1)}
    found = [row.id for row in ROWS if row.id.startswith("B-")]

    assert sorted(found) == sorted(expected)


def test_every_row_has_a_symbol_or_says_why_not() -> None:
    empty = [row.id for row in ROWS if not re.search(r"`|not applicable|\*gap\*", row.here)]

    assert empty == []


def test_rows_of_a_table_are_sorted_by_the_names_of_ggml() -> None:
    for table in TABLES:
        names = [re.sub(r"[^a-z0-9 ]", "", row.ggml.lower()) for row in table]

        assert names == sorted(names)
