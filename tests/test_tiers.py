"""The table of tiers: complete, without rows that decide nothing, and what runs by it."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
FILES = [file for folder in SETTINGS["testpaths"] for file in (ROOT / folder).rglob("test_*.py")]
ELSEWHERE = ("core/src/", "testing/src/", "benchmarks/")
"""Folders whose `test_*.py` are part of the kit or benchmarks, not tests of the checkout."""


@pytest.fixture(scope="module")
def table():
    """The `conftest.py` of the checkout, loaded once more."""
    spec = importlib.util.spec_from_file_location("checkout_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def collected(*arguments: str) -> list[str]:
    """The tests that pytest would run in the checkout."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [line.rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line]


def test_every_test_file_is_in_a_tier(table):
    assert [str(file) for file in FILES if table.row_of(file) is None] == []


def test_every_folder_of_tests_is_run():
    names = subprocess.run(
        ["git", "ls-files", "*test_*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    run = {file.relative_to(ROOT).as_posix() for file in FILES}

    left = [name for name in names if name not in run and Path(name).name.startswith("test_")]

    assert [n for n in left if not n.startswith(ELSEWHERE)] == []


def test_every_row_decides_about_a_file(table):
    deciding = {table.row_of(file) for file in FILES}

    assert [row.pattern for row in table.rows() if row not in deciding] == []


def test_rows_name_tiers_that_there_are(table):
    assert {row.tier for row in table.rows()} <= set(table.TIERS)


def test_map_has_every_row_and_every_file_once(table):
    lines = list(table.map_lines(SETTINGS["testpaths"]))[1:-1]

    assert len(lines) == len(table.rows())
    assert sum(int(line.split()[1]) for line in lines) == len(FILES)


@pytest.mark.parametrize(
    ("tier", "named", "others"),
    [
        ("T0", True, True),
        ("T1", True, True),
        ("T2", False, True),
        ("oracle", False, False),
        ("gpu", False, False),
    ],
)
def test_file_is_left_out_only_where_no_test_of_it_may_be_selected(table, tier, named, others):
    may = table.possible(tier)

    assert any(table.selects("T0 or T1", t) for t in may) is named
    assert any(table.selects("not oracle and not gpu", t) for t in may) is others


def test_expression_with_a_marker_of_a_plugin_leaves_no_file_out(table):
    assert all(table.selects("somebodys_marker", tier) for tier in table.TIERS)


@pytest.mark.long
def test_marker_of_a_single_test_raises_its_tier():
    file = "core/tests/test_concurrency.py"

    quick, late, both = (collected(file, *more) for more in (("-m", "T0"), ("-m", "T1"), ()))

    assert late == ["test_concurrency.py::test_no_order_has_a_hazard"]
    assert sorted(both) == sorted(quick + late)
