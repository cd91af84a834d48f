"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lowers
from tensorplug_simt.own import attention as shared
from tensorplug_simt.program import Program

TEXT = "tensorplug_cuda:kernels/attention.cu"

ATTEND = shared.main_kernel("attend", TEXT)
JOIN = shared.join_kernel(shared.JOIN_TEXT)

ITEMS = 128
SHORTEST = 128
"""Positions that are worth a group of their own."""
WIDE_HEAD = 256
"""Head sizes up to which a group takes 16 rows; else their queries would not fit."""


@lowers("flash_attn_ext", table=OWN)
def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    shared.check(node)
    k, v = node.sources[1:3]
    few = shared.rows_of(node) <= 4 or max(k.ne[0], v.ne[0]) > WIDE_HEAD
    return shared.attend(
        (ATTEND, JOIN),
        node,
        facts,
        together=4 if few else 16,
        items=ITEMS,
        shortest=SHORTEST,
    )
