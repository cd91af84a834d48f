"""What Python and C++ share, as `cpp/tables.h`.

In a checkout: `python -m tensorplug_native.headers plugins/native/cpp/tables.h`
"""

import sys
import zlib
from enum import IntEnum
from functools import cache
from pathlib import Path

import numpy as np

from tensorplug.dtypes import DTYPES
from tensorplug_native.program import (
    FEW_TILED,
    FEW_TILED_PANELS,
    NO_TYPE,
    NODE,
    OPERAND,
    PANEL_ROWS,
    SOURCES,
    Code,
    Ending,
    Join,
    Layout,
    Map,
    Norm,
    Reduction,
)

TITLE = """\
// Written by tensorplug_native/headers.py from core's types and program.py; change those.
#pragma once

#include <cstdint>
"""

C_TYPES = {"u8": "char *", "i8": "int64_t ", "i4": "int32_t ", "f4": "float "}
"""In C++; the only unsigned numbers are addresses."""


@cache
def interface() -> int:
    """A number that differs where the tables do: a library of another build is not run."""
    return zlib.crc32(_tables().encode()) & 0x7FFFFFFF


def header() -> str:
    """The text of `cpp/tables.h`."""
    return f"{TITLE}\nconstexpr int ABI = {interface()};\n{_tables()}"


def _tables() -> str:
    return "\n".join(
        (
            f"constexpr int SOURCES = {SOURCES};",
            f"constexpr int64_t PANEL_ROWS = {PANEL_ROWS};",
            f"constexpr int64_t FEW_TILED = {FEW_TILED};",
            f"constexpr int64_t FEW_TILED_PANELS = {FEW_TILED_PANELS};\n",
            "// Type numbers of GGUF.",
            _enum("Type", {**{t.name.upper(): t.id for t in DTYPES}, "NO_TYPE": NO_TYPE}),
            "// Elements and bytes of a block, by type number.",
            "struct TypeSize {\n    int32_t block, size;\n};",
            "constexpr TypeSize TYPE_SIZES[] = {",
            *_type_sizes(),
            "};\n",
            _enum("Op", {**_members(Code), "OPS": len(Code)}),
            _enum("MapFunction", {**_members(Map), "MAPS": len(Map)}),
            _enum("JoinFunction", {**_members(Join), "JOINS": len(Join)}),
            _enum("NormKind", {**_members(Norm), "NORMS": len(Norm)}),
            _enum("Reduction", {**_members(Reduction), "REDUCTIONS": len(Reduction)}),
            _enum("Ending", _members(Ending)),
            _enum("Layout", _members(Layout)),
            _struct("Operand", OPERAND),
            _struct("Node", NODE),
            f"static_assert(sizeof(Operand) == {OPERAND.itemsize});",
            f"static_assert(sizeof(Node) == {NODE.itemsize});\n",
        )
    )


def _type_sizes() -> list[str]:
    known = {t.id: t for t in DTYPES}
    numbers = range(max(known) + 1)
    return [
        f"    {{{t.block}, {t.size}}}, // {t}" if (t := known.get(number)) else "    {0, 0},"
        for number in numbers
    ]


def _members(numbers: type[IntEnum]) -> dict[str, int]:
    return {member.name: member.value for member in numbers}


def _enum(name: str, members: dict[str, int]) -> str:
    lines = (f"    {member} = {value},\n" for member, value in members.items())
    return f"enum {name} : int32_t {{\n{''.join(lines)}}};\n"


def _struct(name: str, dtype: "np.dtype[np.void]") -> str:
    fields = (_field(key, field[0]) for key, field in (dtype.fields or {}).items())
    return f"struct {name} {{\n{''.join(fields)}}};\n"


def _field(name: str, dtype: "np.dtype[np.generic]") -> str:
    size = "".join(f"[{n}]" for n in dtype.shape)
    kind = "Operand " if dtype.base.names else C_TYPES[dtype.base.str.lstrip("<|>=")]
    return f"    {kind}{name}{size};\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
