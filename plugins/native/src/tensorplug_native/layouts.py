"""Which weights lie in panels: a table by level, or what `tensorplug bench` measured here."""

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tensorplug.dtypes import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0, DType
from tensorplug.system.cache import Cache
from tensorplug_native.rules import PACKABLE

_WIDE = frozenset({Q8_0, Q4_K, Q5_K, Q6_K})
IN_ROWS: Mapping[str, frozenset[DType]] = {
    "avx2": _WIDE | {Q2_K, Q3_K},
    "avx512": _WIDE,
    "avx512_bf16": _WIDE,
    "amx": _WIDE,
}
"""By level: types whose products read rows about as fast as panels, without a measurement."""

LONG_ROW = 2048
SHORT_PACKED: Mapping[str, frozenset[DType]] = {"avx2": frozenset({Q8_0})}
"""By level: types of which rows shorter than LONG_ROW elements are packed in any case.

The end of a row takes time: one row of x times rows of 576 to 1,536 elements took 1.2 to 1.5 times
as long as with panels, with 2,048 and more 1.0 to 1.1 times (Zen 4, one thread and two).
"""

MEASURED = Cache("native", ".json")
"""Files of measurements, one for each processor, level and version of the kernels."""


def packs(level: str, dtype: DType, row: int) -> bool:
    """Whether loaders pack a matrix with rows of `row` elements for products at `level`."""
    if row < LONG_ROW and dtype in SHORT_PACKED.get(level, ()):
        return True
    return dtype in packed_types(level)


def packed_types(level: str) -> frozenset[DType]:
    """Types that loaders pack for products at `level`."""
    measured = read_measured(level)
    return PACKABLE - IN_ROWS.get(level, frozenset()) if measured is None else measured


@cache
def read_measured(level: str) -> frozenset[DType] | None:
    """Types that were measured to be faster in panels on this processor; None without a measure."""
    with suppress(ValueError):
        found = json.loads(MEASURED.read(_file(level)) or b"")
        if isinstance(found, dict) and found.get("for") == _identity(level):
            packed = found.get("packed", ())
            return frozenset(kind for kind in PACKABLE if kind.name in packed)
    return None


def write_measured(level: str, packed: frozenset[DType]) -> bool:
    """Remember what was measured. False where the cache cannot be written."""
    content = {"for": _identity(level), "packed": sorted(kind.name for kind in packed)}
    read_measured.cache_clear()
    return MEASURED.write(_file(level), json.dumps(content, indent=1).encode())


@cache
def processor() -> str:
    """The name of this processor, and on x86 its family, model and stepping."""
    wanted = ("model name", "cpu family", "model", "stepping")
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.setdefault(name.strip(), value.strip())
    return " ".join(found[name] for name in wanted if name in found) or platform.processor()


def _identity(level: str) -> dict[str, str]:
    return {"processor": processor(), "level": level, "version": version("tensorplug-native")}


def _file(level: str) -> str:
    words = json.dumps(_identity(level))
    return f"layouts-{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"
