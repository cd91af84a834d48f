"""docs/from-ggml.md names every item of ggml's interface once, and only symbols that exist."""

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
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


STANDINS = [ROOT / "plugins" / name / "tests" / "standin" for name in ("cuda", "metal")]
HEAD = "| ggml | here | remark |\n|---|---|---|\n"
SECTIONS = {
    section.partition("\n")[0]: [
        [
            Row(*(cell.strip() for cell in line[1:-1].split("|")))
            for line in table.partition("\n\n")[0].splitlines()
        ]
        for table in section.split(HEAD)[1:]
    ]
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")
}
"""The tables of each section of the page."""
TABLES = [table for tables in SECTIONS.values() for table in tables]
ROWS = [row for table in TABLES for row in table]
ITEMS = {
    "Handles, enums, constants": 14, "Buffer types": 7, "Buffers": 15, "Multi-buffers": 5,
    "Tensor data": 5, "Backends": 9, "Computing and plans": 4, "Copies": 4, "Events": 5,
    "Devices": 16, "One backend library": 8, "Registry": 10, "Dynamic loading": 7,
    "CPU backend": 13, "Scheduler": 14, "Scheduler passes": 14, "Execution": 6, "Observers": 3,
    "Graph copy and comparison": 7, "Meta device": 50, "Metal": 13, "Since then in ggml": 57,
    "Ops, types and test-backend-ops": 17,
}  # fmt: skip
"""How many items each group of ggml's interface has."""
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


def test_no_item_of_the_interface_is_missing_or_listed_twice() -> None:
    counts = {title: sum(map(len, tables)) for title, tables in SECTIONS.items() if tables}
    twice = [row.ggml for table in TABLES for row in table if table.count(row) > 1]

    assert counts == ITEMS
    assert twice == []


def test_every_row_has_a_symbol_or_says_why_not() -> None:
    empty = [row.ggml for row in ROWS if not re.search(r"`|not applicable|\*gap\*", row.here)]

    assert empty == []


def test_rows_of_a_table_are_sorted_by_the_names_of_ggml() -> None:
    for table in TABLES:
        names = [re.sub(r"[^a-z0-9 ]", "", row.ggml.lower()) for row in table]

        assert names == sorted(names)
