"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

import math
from dataclasses import replace

from tensorplug.device import Tensor, contiguous_nb
from tensorplug_cuda.kernels import cores
from tensorplug_cuda.kernels.ways import TENSOR, USUAL, WAYS, Way, Ways, chosen
from tensorplug_simt.facts import Facts
from tensorplug_simt.families import attention as shared
from tensorplug_simt.families.softmax import SLOPE
from tensorplug_simt.lowering import number
from tensorplug_simt.program import Program
from tensorplug_simt.trials import SIZES

TEXT = "tensorplug_cuda:kernels/attention.cu"
MMA_TEXT = "tensorplug_cuda:kernels/attention_mma.cu"

ATTEND = shared.main_kernel("attend", TEXT, SLOPE, shared.TEXT)
MMA_ATTEND = shared.main_kernel("mma_attend", MMA_TEXT, SLOPE, shared.TEXT, cores.CORES)

ITEMS = 128
SHORTEST = 128
"""Positions that are worth a group of their own."""
WIDE_HEAD = 256
"""Head sizes up to which a group takes 16 rows; else their queries would not fit."""
MATRIX = 16
"""Rows that are worth a matrix of tensor cores."""
TILES = ((64, 64, 64), (128, 64, 32), (WIDE_HEAD, 32, 16))
"""For heads up to a size, rows of a group and positions at a time that fit memory and registers."""
FEW_ROWS = 32
"""Rows that are worth a smaller group."""
LEAST = 2**31
"""Multiplications and additions that are worth measuring: of a layer and some 512 tokens."""


def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    shared.check(node)
    return chosen(node, facts) if has_many_rows(node) else in_f32(node, facts)


def has_many_rows(node: Tensor) -> bool:
    """Whether rows that share keys are worth a matrix."""
    return node.size > 0 and shared.rows_of(node) >= MATRIX


def in_f32(node: Tensor, facts: Facts) -> Program:
    """The program in f32."""
    few = shared.rows_of(node) <= 4 or _head(node) > WIDE_HEAD
    return shared.attend(
        ATTEND,
        node,
        facts,
        together=4 if few else 16,
        items=ITEMS,
        shortest=SHORTEST,
    )


def fits(node: Tensor, _facts: Facts) -> bool:
    """Whether tensor cores compute attention of many rows."""
    k, v = node.sources[1:3]
    mask = node.operands[3]
    in_order = mask is None or mask.nb[0] == mask.dtype.size
    return cores.fit(k.dtype, v.dtype) and _head(node) <= WIDE_HEAD and in_order


def by_tensor_cores(node: Tensor, facts: Facts) -> Program:
    """The program of attention that fits.

    Queries are scaled, then rounded to bf16 where keys and values are, else to f16; scores and sums
    are f32.
    """
    head = _head(node)
    together, at_once = next(tile for largest, *tile in TILES if head <= largest)
    return shared.attend(
        MMA_ATTEND,
        node,
        facts,
        together=together if shared.rows_of(node) > FEW_ROWS else FEW_ROWS,
        items=cores.ITEMS,
        shortest=SHORTEST,
        defines={
            **cores.defines(node.sources[1].dtype),
            **({"SOFTCAP": 1} if number(node, "softcap") else {}),
            "AT_ONCE": at_once,
        },
    )


def operations(node: Tensor) -> int:
    """Multiplications and additions, masked ones too."""
    q, k, v = node.sources[:3]
    return 2 * (k.ne[0] + v.ne[0]) * k.ne[1] * q.ne[1] * q.ne[2] * q.ne[3]


def cut(node: Tensor, most: int) -> Tensor:
    """The same for the first tokens alone where it has more than `most` operations."""
    q = node.sources[0]
    # One token more than tiles have, so that a part of one is tried too.
    tokens = min(q.ne[1], max((most // (operations(node) // q.ne[1]) - 1) // 64, 1) * 64 + 1)
    ne = (*node.ne[:2], tokens, node.ne[3])
    fewer = replace(q, ne=(q.ne[0], tokens, *q.ne[2:]))
    operands = (fewer, *node.operands[1:])
    return replace(node, ne=ne, nb=contiguous_nb(node.dtype, ne), operands=operands)


def size(node: Tensor, operand: Tensor) -> float:
    """How large numbers are with which scores are about 1: larger ones magnify every rounding."""
    q, k = node.sources[:2]
    if operand is not q:
        return 1.0
    scores = abs(number(node, "scale")) * math.sqrt(k.ne[0]) * SIZES.get(k.dtype, 1.0)
    return 1.0 / scores if scores else 1.0


WAYS["flash_attn_ext"] = Ways(
    {
        USUAL: Way(lambda _node, _facts: True, in_f32),
        TENSOR: Way(fits, by_tensor_cores),
    },
    applies=has_many_rows,
    operations=operations,
    cut=cut,
    mask=lambda node: node.operands[3],
    size=size,
    least=LEAST,
)


def _head(node: Tensor) -> int:
    """The size of keys or values of a head, whichever is larger."""
    return max(tensor.ne[0] for tensor in node.sources[1:3])
