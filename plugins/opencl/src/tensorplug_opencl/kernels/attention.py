"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from collections.abc import Mapping

from tensorplug.device import Tensor
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.families import attention as shared
from tensorplug_simt.lowering import lowers
from tensorplug_simt.program import Program, blocks_of

TEXT = "tensorplug_opencl:kernels/attention.cl"

ROW = shared.main_kernel("attend_row", TEXT)
TILE = shared.main_kernel("attend_tile", TEXT)
JOIN = shared.join_kernel(TEXT)

SHORTEST = 256
"""Positions that are worth a group of their own."""


@lowers("flash_attn_ext", table=OWN)
def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    shared.check(node)
    q, k, v = node.sources[:3]
    together = _rows(shared.rows_of(node), k.ne[2] * q.ne[3], k.ne[0], facts)
    return shared.attend(
        (ROW if facts.wide else TILE, JOIN),
        node,
        facts,
        together=together,
        items=1 if facts.wide else 8 * together,
        shortest=SHORTEST,
        defines=_packed(k, v, facts),
    )


def _rows(rows: int, others: int, size: int, facts: Facts) -> int:
    """Rows that share keys and are computed together; there are so many `others` beside them."""
    if facts.wide:
        rows = max(rows, 1)
        fewest = min(facts.units, rows * others)
        return next(n for n in (4, 2, 1) if n < 2 * rows and blocks_of(rows, n) * others >= fewest)
    # Queries of so many rows and a tile of keys and scores fit 32 KiB.
    most = 16 if size <= 256 else 8 if size <= 640 else 4
    return min(most, 4 if rows <= 4 else 8 if rows <= 8 else 16)


def _packed(k: Tensor, v: Tensor, facts: Facts) -> Mapping[str, int]:
    """Whether keys and values are loaded as vectors."""
    if not facts.wide:
        return {}
    named = {"K_PACKED": k, "V_PACKED": v}
    return {name: 1 for name, t in named.items() if t.nb[0] == t.dtype.size}
