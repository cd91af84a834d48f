"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.dtypes import F32, I64
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import LIMIT, NoKernel, lowers, need_type
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Program,
    Region,
    blocks_of,
    launch,
    scratch,
)

TEXT = "tensorplug_cuda:kernels/sort.cu"
PART = 4096
"""Elements that are sorted in the memory of a group: 32 KiB."""
ITEMS = 512

SORT_PART = Kernel(
    "sort_part",
    TEXT,
    ("x", "keys", "y"),
    ("keys", "y"),
    (("parts", "int"), ("descending", "int")),
)
MERGE_PARTS = Kernel(
    "merge_parts",
    TEXT,
    ("keys", "y"),
    ("keys", "y"),
    (("count", "uint"), ("run", "int"), ("side", "int"), ("last", "int")),
)


@lowers("argsort", "top_k", table=OWN)
def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    (x,) = node.sources
    need_type(x, frozenset({F32}))
    descending = node.op == "top_k" or bool(node.params["descending"])
    parts = blocks_of(x.ne[0], PART)
    keys = _keys(x)
    places: dict[str, Tensor | Region] = {"x": x, "y": node}
    if parts > 1:
        places["keys"] = keys
    part = _part(x.ne[0])
    first = launch(
        SORT_PART,
        places,
        groups=(parts * x.ne[1], x.ne[2], x.ne[3]),
        local=(min(ITEMS, part // 2),),
        defines={"PART": part, "GROUP_SIZE": min(ITEMS, part // 2)},
        parts=parts,
        descending=int(descending),
    )
    if parts == 1:
        return Program((first,))
    return Program((first, *_merges(node, keys, facts)), scratch=keys.nbytes)


def _part(length: int) -> int:
    """Room in the memory of a group: less for short rows, so that more groups run at once."""
    return PART if length > PART // 8 else PART // 8 if length > PART // 64 else PART // 64


def _merges(node: Tensor, keys: Region, facts: Facts) -> list[Launch]:
    """Launches that double the length of sorted runs, from one half of `keys` to the other."""
    length, rows = keys.ne[:2]
    runs = [PART]
    while runs[-1] * 2 < length:
        runs.append(runs[-1] * 2)
    return [
        per_element(
            MERGE_PARTS,
            {"keys": keys, "y": node},
            length * rows,
            facts,
            run=run,
            side=i % 2,
            last=int(run == runs[-1]),
        )
        for i, run in enumerate(runs)
    ]


def _keys(x: Tensor) -> Region:
    """Scratch memory for two halves, each with a number for every element of x."""
    length, rows = x.ne[0], x.rows
    if 2 * x.size > LIMIT:
        raise NoKernel(f"{x} has more than {LIMIT // 2} elements")
    row = length * I64.size
    return scratch(I64, (length, rows, 2, 1), (I64.size, row, row * rows, 2 * row * rows))
