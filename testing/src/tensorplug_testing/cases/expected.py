"""Results of the reference, with a cache on disk for results that take long to compute."""

import contextlib
import hashlib
import io
import os
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorplug.device import Tensor
from tensorplug.system.cache import Cache
from tensorplug_cpu import reference
from tensorplug_testing.cases.case import Built

Array = npt.NDArray[Any]
SLOW = 0.01
"""Results that take at least this many seconds are stored in the cache."""
CACHE = Cache("reference", ".sqlite")
KEPT = 8
"""The number of cache files that are kept, for several environments and recent releases."""


def expected(built: Built, roots: Sequence[Tensor]) -> list[Array]:
    """The float64 values of `roots` after a run of the reference."""

    def values() -> list[Array]:
        memory = reference.execute(built.graph, built.stored)
        return [memory.value(root) for root in roots]

    return kept(built, "", values)


def kept(built: Built, what: str, compute: Callable[[], list[Array]]) -> list[Array]:
    """Return the result of `compute`. If it took long, the next call reads it from the cache.

    `what` distinguishes several results of one case.
    """
    key = f"{built.label}#{built.seed}{what}"
    found = _look_up(key)
    if found is not None:
        return found
    start = time.perf_counter()
    values = compute()
    if time.perf_counter() - start > SLOW:
        _keep(key, values)
    return values


@cache
def reference_hash() -> str:
    """A digest of everything that results depend on: the reference, the cases, NumPy's version."""
    digest = hashlib.sha256(np.__version__.encode())
    for folder in (Path(reference.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _file(_process: int) -> sqlite3.Connection | None:
    """The cache file of this reference, opened once per process; None if it cannot be opened."""
    folder = CACHE.usable()
    if folder is None:
        return None
    try:
        path = folder / f"reference-{reference_hash()}.sqlite"
        try:
            base = _opened(path)
        except sqlite3.OperationalError:  # locked, or no place to write
            raise
        except sqlite3.DatabaseError:  # not a database: the disk was full, or a process was killed
            path.unlink()
            base = _opened(path)
        _forget_all_but(path)
    except (OSError, sqlite3.Error):
        return None  # without a cache, results are computed again
    return base


def _opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        base.execute("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, arrays BLOB)")
    except sqlite3.Error:
        base.close()
        raise
    return base


def _forget_all_but(used: Path) -> None:
    """Delete the oldest files. Each version of the reference has a file of its own."""
    with contextlib.suppress(OSError):  # no permission, or another process has deleted it
        others = [path for path in used.parent.glob("reference-*.sqlite") if path != used]
        others.sort(key=lambda path: path.stat().st_mtime)
        for path in others[: 1 - KEPT]:
            path.unlink()


def _look_up(key: str) -> list[Array] | None:
    base = _file(os.getpid())
    if base is None:
        return None
    try:
        row = base.execute("SELECT arrays FROM results WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else _unpacked(row[0])


def _unpacked(packed: bytes) -> list[Array] | None:
    try:
        with np.load(io.BytesIO(packed)) as arrays:
            return [arrays[name] for name in arrays.files]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return None  # a damaged entry is computed and stored again


def _keep(key: str, values: Sequence[Array]) -> None:
    base = _file(os.getpid())
    if base is None:
        return
    packed = io.BytesIO()
    np.savez_compressed(packed, *values)
    try:
        with base:
            base.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, packed.getvalue()))
    except sqlite3.Error:
        return
