"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.dtypes import F32
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lowers, need_type
from tensorplug_simt.own.sort import MERGE_NUMBERS, keys_of, merges
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch

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
MERGE_PARTS = Kernel("merge_parts", TEXT, ("keys", "y"), ("keys", "y"), MERGE_NUMBERS)


@lowers("argsort", "top_k", table=OWN)
def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    (x,) = node.sources
    need_type(x, frozenset({F32}))
    descending = node.op == "top_k" or bool(node.params["descending"])
    parts = blocks_of(x.ne[0], PART)
    keys = keys_of(x)
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
    return Program((first, *merges(MERGE_PARTS, node, keys, PART, facts)), scratch=keys.nbytes)


def _part(length: int) -> int:
    """Room in the memory of a group: less for short rows, so that more groups run at once."""
    return PART if length > PART // 8 else PART // 8 if length > PART // 64 else PART // 64
