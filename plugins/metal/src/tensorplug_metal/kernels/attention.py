"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families import attention as shared
from tensorplug_simt.families.softmax import SLOPE
from tensorplug_simt.grids import power_of_two
from tensorplug_simt.program import Program

TEXT = "tensorplug_metal:kernels/attention.metal"

ATTEND = shared.main_kernel("attend", TEXT, SLOPE, shared.TEXT)
ATTEND_TILES = shared.main_kernel("attend_tiles", TEXT, SLOPE, shared.TEXT)

FEW_ROWS = 4
"""Up to 4 rows share positions one by one; more are worth matrices of simdgroups."""
ITEMS = 128
SHORTEST = 128
"""Positions that are worth a group of their own."""
SMALL_HEAD, WIDE_HEAD = 128, 256
"""Head sizes up to which the memory of a group holds 32 queries, and 16."""


def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    shared.check(node)
    head = max(tensor.ne[0] for tensor in node.sources[1:3])
    rows = shared.rows_of(node)
    kernel, together, items = ATTEND, 1, ITEMS
    if head <= WIDE_HEAD and rows <= FEW_ROWS:
        together = power_of_two(max(rows, 1))
    elif head <= WIDE_HEAD:
        kernel, together = ATTEND_TILES, 32 if head <= SMALL_HEAD else 16
        items = together // 8 * 32
    return shared.attend(kernel, node, facts, together=together, items=items, shortest=SHORTEST)
