"""Attention on processors, in long vectors; GPUs have the shared kernel."""

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families import attention as shared
from tensorplug_simt.families.softmax import SLOPE
from tensorplug_simt.program import Program, blocks_of

TEXT = "tensorplug_opencl:kernels/attention.cl"

ROW = shared.main_kernel("attend_row", TEXT, SLOPE, shared.TEXT)
SHORTEST = 512
"""Positions that are worth a group of their own: those of a model with a short text are not, most
of which no token sees, and joining parts is one more launch."""


def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    if not facts.wide:
        return shared.flash_attn_ext(node, facts)
    shared.check(node)
    q, k, v = node.sources[:3]
    packed = {"K_PACKED": k, "V_PACKED": v}
    return shared.attend(
        ROW,
        node,
        facts,
        together=_rows(max(shared.rows_of(node), 1), k.ne[2] * q.ne[3], facts),
        items=1,
        shortest=SHORTEST,
        defines={name: 1 for name, t in packed.items() if t.nb[0] == t.dtype.size},
    )


def _rows(rows: int, others: int, facts: Facts) -> int:
    """Rows that share keys and are computed together, with `others` next to them."""
    fewest = min(facts.units, rows * others)
    return next(n for n in (4, 2, 1) if n < 2 * rows and blocks_of(rows, n) * others >= fewest)
