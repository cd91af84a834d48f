"""Products with many columns that a library may compute: both sides of one type of floats.

The launch is that of a kernel all the same, which computes it where the library does not.
"""

from tensorplug.device import Tensor, contiguous_nb
from tensorplug.dtypes import BF16, F16, F32, DType
from tensorplug_cuda import lt
from tensorplug_cuda.kernels.columns import TEXT
from tensorplug_cuda.kernels.cores import factor_type
from tensorplug_cuda.kernels.experts import SIDE, TILE_ITEMS
from tensorplug_cuda.kernels.ways import are_measured
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import copies
from tensorplug_simt.families.product import REPEATS, may_round, repeats
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Program,
    Region,
    blocks_of,
    launch,
    region,
    scratch,
)

LIBRARY_PRODUCT = Kernel("tiled_product", TEXT, ("w", "x", "y"), ("y",), REPEATS)
DECODED_COLUMNS = 128
"""Columns from which on it may pay to decode weights of blocks for it."""
MOST_ROOM = 2**28
"""Bytes for operands in another type that are worth trying; who asks for the library gets more."""
ALIGNMENT = 256


def fits(node: Tensor, facts: Facts) -> bool:
    """Whether a library computes a `mul_mat` with elements, if there is one."""
    kind = _kind(node)
    if kind is None or not _fits(node) or (are_measured(facts) and lt.missing()):
        return False
    others = [source for source in node.sources if source.dtype is not kind]
    if others and not may_round(node):
        return False
    return sum(t.size * kind.size for t in others) <= MOST_ROOM or not are_measured(facts)


def by_library(node: Tensor, facts: Facts) -> Program:
    """The program of a `mul_mat` that fits."""
    kind = _kind(node) or F32
    w, x = (region(source) for source in node.sources)
    launches: list[Launch] = []
    room = 0
    if w.dtype is not kind:
        decoded = _as(w, kind, room)
        launches += copies(w, decoded, facts)
        w, room = decoded, decoded.offset + decoded.nbytes
    if x.dtype is not kind:
        rounded = _as(x, kind, room)
        launches += copies(x, rounded, facts)
        x, room = rounded, rounded.offset + rounded.nbytes
    product = launch(
        LIBRARY_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=(blocks_of(w.ne[1], SIDE), blocks_of(x.ne[1], SIDE), node.ne[2]),
        local=(TILE_ITEMS,),
        numbers=repeats(*node.sources),
    )
    return Program((*launches, product), scratch=room)


def _kind(node: Tensor) -> DType | None:
    """The type in which both sides are multiplied."""
    w, x = node.sources
    if w.dtype.is_block:
        return factor_type(w.dtype) if x.ne[1] >= DECODED_COLUMNS and not w.splits_blocks else None
    return w.dtype if w.dtype in (F32, F16, BF16) else None


def _fits(node: Tensor) -> bool:
    """Whether matrices lie as a library takes them: columns without gaps, in even steps."""
    w, x = node.sources
    matrices = w.ne[2] in (1, node.ne[2]) and w.ne[3] == x.ne[3] == 1
    return matrices and all(
        t.nb[0] == t.dtype.size and all(step % t.dtype.size == 0 for step in t.nb[1:3])
        for t in (w, x, node)
    )


def _as(place: Region, kind: DType, room: int) -> Region:
    """Scratch memory for `place` in another type, behind `room` bytes."""
    start = blocks_of(room, ALIGNMENT) * ALIGNMENT
    return scratch(kind, place.ne, contiguous_nb(kind, place.ne), start)
