"""What all tests share: their tiers, their processes, a browser, and a collector that waits.

The tiers stand in `tests/tiers.toml`. A run of whole folders is one of tier T0 unless `-m` says
otherwise, and uses all processors, each test class or module in one process. Files and tests that
are named run whether they are in T0 or in T1, in the process of pytest itself.
"""

import gc
import os
import shutil
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parent
TABLE = ROOT / "tests" / "tiers.toml"
TIERS = ("T0", "T1", "T2", "oracle", "gpu")
RAISED = {"long": "T1", "slow": "T2"}
"""Markers of single tests, and the tier that a test with one is in at least."""
ALONE = ("oracle", "gpu")
"""Tiers that run in one process: what they write down, or use, is one."""
MOST = 8
"""Processes at most: each collects all tests."""


# --- tiers ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of the table."""

    pattern: str
    tier: str
    what: str


@cache
def rows() -> tuple[Row, ...]:
    """The table."""
    return tuple(Row(*row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["rows"])


@cache
def row_of(path: Path) -> Row | None:
    """The row that decides about a file; None where none matches."""
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    return next((row for row in reversed(rows()) if fnmatchcase(name, row.pattern)), None)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test: its file's, or a later one that a marker names."""
    row = row_of(item.path)
    named = [row.tier if row is not None else TIERS[0]]
    named += [tier for marker, tier in RAISED.items() if item.get_closest_marker(marker)]
    return max(named, key=TIERS.index)


def possible(tier: str) -> tuple[str, ...]:
    """Tiers that a test in a file of this tier may be in."""
    order = ("T0", *RAISED.values())
    return order[order.index(tier) :] if tier in order else (tier,)


@cache
def selects(expression: str, tier: str) -> bool:
    """True if `-m expression` may select a test that has no marker except its tier."""
    compiled = Expression.compile(expression)
    known = {name: name == tier for name in TIERS}
    # Of other markers nothing is known: either answer is tried.
    return any(
        compiled.evaluate(lambda name, _other=other, **_: known.get(name, _other))
        for other in (False, True)
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files none of whose tests are selected: naming their cases takes seconds."""
    expression = config.option.markexpr
    if not expression or collection_path.suffix != ".py":
        return None
    row = row_of(collection_path)
    if row is None or any(selects(expression, tier) for tier in possible(row.tier)):
        return None
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, for `-m`."""
    for item in items:
        item.add_marker(tier_of(item))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tensorplug-map", action="store_true", help="print which tests are in which tier, and end"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.option.tensorplug_map:
        print(*map_lines(config.getini("testpaths")), sep="\n")
        return 0
    named = all("::" in arg or arg.endswith(".py") for arg in config.args)
    if not config.option.markexpr:
        config.option.markexpr = "T0 or T1" if named else "T0"
    if not named and config.option.markexpr not in ALONE:
        use_processors(config)
    return None


def map_lines(folders: list[str]) -> Iterator[str]:
    """The table with the number of files of each row, which another row may have taken over."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("test_*.py")]
    wide = max(len(row.pattern) for row in rows())
    yield f"{'tier':6} {'files':>5}  {'pattern':{wide}}  what it tests"
    for row in sorted(rows(), key=lambda row: TIERS.index(row.tier)):
        count = sum(row_of(path) is row for path in files)
        yield f"{row.tier:6} {count:5}  {row.pattern:{wide}}  {row.what}"
    yield "Single tests marked `long` are in T1 at least, those marked `slow` in T2."


# --- processes -----------------------------------------------------------------------------------


def use_processors(config: pytest.Config) -> None:
    """Ask pytest-xdist, where it is installed, for a process on each processor."""
    options = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    if options.numprocesses is None and not (options.tx or options.collectonly or options.usepdb):
        options.numprocesses = min(processors(), MOST)
    if options.numprocesses and options.dist == "no":
        options.dist = "loadscope"


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- a browser -----------------------------------------------------------------------------------

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system without a window, driven by Playwright."""
    library = pytest.importorskip("playwright.sync_api")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    # Of one module: while it runs, tests of this process cannot begin an event loop of their own.
    with library.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


# --- garbage -------------------------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """Freeze some million objects that pytest keeps for tens of thousands of tests.

    Tests that call `gc.collect()` would look at all of them each time, and so would Python itself.
    """
    gc.collect()
    gc.freeze()
