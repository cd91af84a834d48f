"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.dtypes import F32
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import lowers, need_type, number
from tensorplug_simt.own.sort import MERGE_NUMBERS, keys_of, merges
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch

TEXT = "tensorplug_opencl:kernels/sort.cl"
PART = 2048
"""Elements that are sorted in the memory of a group: 16 KiB."""
FEW = 64
"""The most elements of top_k that one item keeps in order while it reads the row."""

_BUFFERS = ("x", "keys", "y")
SORT_PART = Kernel(
    "sort_part", TEXT, _BUFFERS, ("keys", "y"), (("parts", "int"), ("descending", "int"))
)
MERGE_PARTS = Kernel("merge_parts", TEXT, ("keys", "y"), ("keys", "y"), MERGE_NUMBERS)
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
    keys = keys_of(x)
    places: dict[str, Tensor | Region] = {"x": x, "keys": keys, "y": node}
    sort = per_row(SORT_ROW, places, x.ne[1:], facts, descending=int(descending))
    return Program((sort,), scratch=keys.nbytes)


def _by_groups(node: Tensor, x: Tensor, facts: Facts, *, descending: bool) -> Program:
    """Parts of rows in the memory of groups, then merged two by two."""
    parts = blocks_of(x.ne[0], PART)
    keys = keys_of(x)
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
    return Program((first, *merges(MERGE_PARTS, node, keys, PART, facts)), scratch=keys.nbytes)
