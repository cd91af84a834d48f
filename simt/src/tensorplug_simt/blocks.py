"""Texts that decode the elements of block types, each with the parts and tables it needs."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np
from gguf import quants

from tensorplug.dtypes import (
    F64,
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q4_K,
    Q5_K,
    DType,
)
from tensorplug_simt.dialects.dialect import read_resource

FOLDER = "tensorplug_simt:kernels/blocks"

PARTS: Mapping[DType, tuple[str, ...]] = MappingProxyType(
    {
        Q4_K: ("six_bit",),
        Q5_K: ("six_bit",),
        IQ2_XXS: ("words", "signs", "iq2", "grid_iq2_xxs"),
        IQ2_XS: ("words", "signs", "iq2", "grid_iq2_xs"),
        IQ2_S: ("iq2", "grid_iq2_s"),
        IQ3_XXS: ("words", "signs", "grid_iq3_xxs"),
        IQ3_S: ("grid_iq3_s",),
        IQ1_S: ("words", "grid_iq1"),
        IQ1_M: ("words", "halves", "grid_iq1"),
        IQ4_NL: ("values_iq4",),
        IQ4_XS: ("values_iq4",),
        MXFP4: ("values_fp4",),
        NVFP4: ("values_fp4",),
    }
)
"""What a decoder takes from elsewhere, in order: tables, else resources `part_NAME.k`."""


def _grid(codec: type) -> str:
    """One ushort for each row of a grid: its codes, the first in the lowest bits.

    Rows of eight have codes of 2 bits, rows of four of 4: places in the codec's list of values.
    """
    codec.init_grid()  # type: ignore[attr-defined]  # a class of gguf, which names no base class
    _, _, rows, length = codec.grid.shape  # type: ignore[attr-defined]  # as above
    places = {value: i for i, value in enumerate(codec.grid_map)}  # type: ignore[attr-defined]
    codes = [places[int(v)] for v in codec.grid.reshape(-1)]  # type: ignore[attr-defined]
    shifts = np.arange(length) * (16 // length)
    packed = (np.array(codes).reshape(rows, length) << shifts).sum(axis=1)
    return _table("ushort", packed.tolist())


def _table(kind: str, numbers: "list[int] | tuple[int, ...]") -> str:
    return f"{kind} %s[{len(numbers)}] = {{{','.join(map(str, numbers))}}};"


TABLES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "grid_iq1": lambda: _grid(quants.IQ1_S),
        "grid_iq2_xxs": lambda: _grid(quants.IQ2_XXS),
        "grid_iq2_xs": lambda: _grid(quants.IQ2_XS),
        "grid_iq2_s": lambda: _grid(quants.IQ2_S),
        "grid_iq3_xxs": lambda: _grid(quants.IQ3_XXS),
        "grid_iq3_s": lambda: _grid(quants.IQ3_S),
        "values_iq4": lambda: _table("char", quants.IQ4_NL.kvalues),
        "values_fp4": lambda: _table("char", quants.MXFP4.kvalues),
    }
)
"""Codebooks, written out of those of `gguf` when a program needs them."""


@cache
def part_text(name: str) -> str:
    """A part that several decoders share; a program may name it any number of times."""
    table = TABLES.get(name)
    if table is None:
        body = read_resource(f"{FOLDER}/part_{name}.k")
    else:
        body = f"TABLE const {table() % name}\n"
    return f"#ifndef part_{name}\n#define part_{name}\n{body}#endif\n"


@cache
def block_text(dtype: DType) -> str:
    """The text of `decode_NAME(block, i)`, element `i` of a block; of what loads and stores f64.

    Empty for other element types, which all programs know.
    """
    if dtype is F64:
        return read_resource("tensorplug_simt:kernels/f64.k")
    if not dtype.is_block:
        return ""
    parts = "".join(part_text(name) for name in PARTS.get(dtype, ()))
    return parts + read_resource(f"{FOLDER}/{dtype.name}.k")
