"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.dtypes import F32, I64
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Program,
    Region,
    blocks_of,
    launch,
    scratch,
)

TEXT = "tensorplug_opencl:kernels/sort.cl"
PART = 2048
"""Elements that are sorted in the memory of a group: 16 KiB."""
FEW = 64
"""The most elements of top_k that one item keeps in order while it reads the row."""
LARGEST = 2**31 - 1

_BUFFERS = ("x", "keys", "y")
SORT_PART = Kernel(
    "sort_part", TEXT, _BUFFERS, ("keys", "y"), (("parts", "int"), ("descending", "int"))
)
MERGE_PARTS = Kernel(
    "merge_parts",
    TEXT,
    ("keys", "y"),
    ("keys", "y"),
    (("count", "uint"), ("run", "int"), ("side", "int"), ("last", "int")),
)
SORT_ROW = Kernel("sort_row", TEXT, _BUFFERS, ("keys", "y"), (("descending", "int"),))
TOP_FEW = Kernel("top_few", TEXT, ("x", "y"), ("y",))


@lowers("argsort", "top_k", table=OWN)
def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    (x,) = node.sources
    need_type(x, frozenset({F32}))
    descending = node.op == "top_k" or bool(node.params["descending"])
    if not facts.wide:
        return _by_groups(node, x, facts, descending=descending)
    if node.op == "top_k" and number(node, "k") <= FEW:
        few = {"MOST": FEW}
        return Program((per_row(TOP_FEW, {"x": x, "y": node}, x.ne[1:], facts, defines=few),))
    keys = _keys(x)
    places: dict[str, Tensor | Region] = {"x": x, "keys": keys, "y": node}
    sort = per_row(SORT_ROW, places, x.ne[1:], facts, descending=int(descending))
    return Program((sort,), scratch=keys.nbytes)


def _by_groups(node: Tensor, x: Tensor, facts: Facts, *, descending: bool) -> Program:
    """Parts of rows in the memory of groups, then merged two by two."""
    parts = blocks_of(x.ne[0], PART)
    keys = _keys(x)
    places: dict[str, Tensor | Region] = {"x": x, "y": node}
    if parts > 1:
        places["keys"] = keys
    first = launch(
        SORT_PART,
        places,
        groups=(parts * x.ne[1], x.ne[2], x.ne[3]),
        local=(facts.flat_group,),
        defines={"PART": PART, "GROUP_SIZE": facts.flat_group},
        parts=parts,
        descending=int(descending),
    )
    if parts == 1:
        return Program((first,))
    return Program((first, *_merges(node, keys, facts)), scratch=keys.nbytes)


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
    if 2 * x.size > LARGEST:
        raise NoKernel(f"{x} has more than {LARGEST // 2} elements")
    row = length * I64.size
    return scratch(I64, (length, rows, 2, 1), (I64.size, row, row * rows, 2 * row * rows))
