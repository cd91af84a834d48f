"""The grids of the block types iq1 to iq3, as `cpp/grids.h`.

In a checkout: `python -m tensorplug_native.grids plugins/native/cpp/grids.h`
"""

import sys
import textwrap
from pathlib import Path

import numpy as np

from tensorplug.blocks.rows import gguf_quants

TITLE = """\
// Written by tensorplug_native/grids.py from the tables that core decodes with; change it there.
// A number is a row of a grid: eight codes of two bits, or four of four bits, the first in the
// lowest bits. A code is a place among the values of its type, in rising order.
#pragma once

#include <cstdint>
"""

GRIDS = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Classes of `gguf`; iq1_m has the grid of iq1_s."""


def header() -> str:
    """The text of `cpp/grids.h`."""
    return "\n".join((TITLE, *(_grid(name) for name in GRIDS)))


def _grid(name: str) -> str:
    codec = getattr(gguf_quants(), name)
    codec.init_grid()
    _, _, rows, length = codec.grid.shape
    places = np.searchsorted(codec.grid_map, codec.grid.reshape(rows, length))
    numbers = (places << np.arange(length) * (16 // length)).sum(axis=1)
    values = ", ".join(str(value) for value in codec.grid_map)
    lines = textwrap.wrap(", ".join(map(str, numbers.tolist())), 112)
    return (
        f"constexpr int8_t VALUES_{name}[] = {{{values}}};\n"
        f"constexpr uint16_t GRID_{name}[{rows}] = {{\n    " + "\n    ".join(lines) + "\n};\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
