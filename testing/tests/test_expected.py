"""What the reference gives is kept on disk, by case, seed and the text of the reference."""

import sqlite3

import numpy as np
import pytest

from tensorplug_cpu import reference
from tensorplug_testing.cases import SMALL, build, expected

CASE = next(case for case in SMALL if case.op == "soft_max")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder for results, and everything worth keeping."""
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(expected, "SLOW", 0.0)
    expected._file.cache_clear()
    yield tmp_path / "cache" / "reference"
    expected._file.cache_clear()


@pytest.fixture
def runs(monkeypatch):
    """The runs of the reference."""
    counted = []
    execute = reference.execute

    def count(graph, stored):
        counted.append(graph)
        return execute(graph, stored)

    monkeypatch.setattr(reference, "execute", count)
    return counted


def values(base=0):
    built = build(CASE, base)
    return expected.expected(built, [built.node])[0]


def test_second_look_computes_nothing_and_gives_the_same(kept, runs):
    first, second = values(), values()

    assert len(runs) == 1
    np.testing.assert_array_equal(first, second)


def test_another_seed_is_another_result(kept, runs):
    first, second = values(), values(base=1)

    assert len(runs) == 2
    assert not np.array_equal(first, second)


def test_another_reference_is_another_file(kept, runs, monkeypatch):
    values()
    expected._file.cache_clear()
    monkeypatch.setattr(expected, "reference_hash", lambda: "another")

    values()

    assert len(runs) == 2
    assert len(list(kept.glob("reference-*.sqlite"))) == 2


def test_results_that_are_quick_are_not_kept(kept, runs, monkeypatch):
    monkeypatch.setattr(expected, "SLOW", 1e9)

    values()
    values()

    assert len(runs) == 2


def test_folder_that_cannot_be_made_costs_time_only(tmp_path, monkeypatch, runs):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path / "file" / "cache"))
    expected._file.cache_clear()

    first, second = values(), values()

    expected._file.cache_clear()
    np.testing.assert_array_equal(first, second)
    assert len(runs) == 2


def test_damaged_file_begins_anew(kept, runs):
    values()
    expected._file.cache_clear()
    (path,) = kept.glob("*.sqlite")
    path.write_bytes(b"no database" * 100)

    values()
    values()

    assert len(runs) == 2


@pytest.mark.parametrize("damage", [b"", b"no archive", b"PK\x03\x04" + bytes(100)])
def test_damaged_result_is_computed_and_kept_anew(kept, runs, damage):
    first = values()
    (path,) = kept.glob("*.sqlite")
    with sqlite3.connect(path) as base:
        base.execute("UPDATE results SET arrays = ?", (damage,))

    second, third = values(), values()

    assert len(runs) == 2
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


def test_file_that_another_process_writes_is_read(kept, runs):
    first = values()
    (path,) = kept.glob("*.sqlite")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")

        second = values()

    assert len(runs) == 1
    np.testing.assert_array_equal(first, second)


def test_files_of_old_references_are_deleted(kept, monkeypatch):
    monkeypatch.setattr(expected, "KEPT", 2)
    for hash_of_reference in ("first", "second", "third"):
        expected._file.cache_clear()
        monkeypatch.setattr(expected, "reference_hash", lambda name=hash_of_reference: name)
        values()

    assert len(list(kept.glob("reference-*.sqlite"))) == 2
    assert (kept / "reference-third.sqlite").exists()
