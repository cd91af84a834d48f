"""Orders of rows: argsort, and the places of the largest elements."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.sort import KEYS, in_parts, is_descending, keys_of
from tensorplug_simt.families.sort import TEXT as SHARED_TEXT
from tensorplug_simt.grids import Regions, per_row
from tensorplug_simt.lowering import need_type, number
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_opencl:kernels/sort.cl"
FEW = 64
"""The most elements of top_k that one item keeps in order while it reads the row."""

SORT_ROW = Kernel(
    "sort_row", TEXT, ("x", *KEYS), KEYS, (("descending", "int"),), parts=(SHARED_TEXT,)
)
TOP_FEW = Kernel("top_few", TEXT, ("x", "y"), ("y",), parts=(SHARED_TEXT,))


def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    (x,) = node.sources
    need_type(x, frozenset({F32}))
    if not facts.wide:
        return in_parts(node, facts)
    if node.op == "top_k" and number(node, "k") <= FEW:
        few = {"MOST": FEW}
        return Program((per_row(TOP_FEW, {"x": x, "y": node}, x.ne[1:], facts, defines=few),))
    keys = keys_of(x)
    regions: Regions = {"x": x, "keys": keys, "y": node}
    sort = per_row(SORT_ROW, regions, x.ne[1:], facts, descending=int(is_descending(node)))
    return Program((sort,), scratch=keys.nbytes)
