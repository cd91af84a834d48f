"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from dataclasses import replace

from tensorplug.device import Tensor
from tensorplug_cuda.kernels import cores
from tensorplug_simt.facts import Facts
from tensorplug_simt.families import attention as shared
from tensorplug_simt.families.softmax import SLOPE
from tensorplug_simt.grids import power_of_two
from tensorplug_simt.lowering import number
from tensorplug_simt.program import Kernel, Launch, Program, blocks_of

TEXT = "tensorplug_cuda:kernels/attention.cu"
MMA_TEXT = "tensorplug_cuda:kernels/attention_mma.cu"

ATTEND = shared.main_kernel("attend", TEXT, SLOPE, shared.TEXT)
ATTEND_FEW = shared.main_kernel("attend_few", TEXT, SLOPE, shared.TEXT, cores.QUADS)
MMA_ATTEND = shared.main_kernel("mma_attend", MMA_TEXT, SLOPE, shared.TEXT, *cores.CORES)

JOIN = Kernel("attend_join", TEXT, shared.JOIN.buffers, shared.JOIN.writes, (), (shared.TEXT,))
"""Makes results of the parts."""

ITEMS = 128
ITEMS_OF_FEW = 256
"""Items of a group of `attend_few` and of `attend_join`."""
SHORTEST = 128
"""Positions that are worth a group of their own."""
EIGHT = 8
"""Elements of a key or a value that an item of `attend_few` has."""
FEW, SHORTEST_OF_FEW = 4, 24
"""Rows of a group of `attend_few`, and positions that are worth one: it takes 32 or more."""
MOST = 2
"""Groups of `attend_few` or of `mma_attend` for a unit."""
WIDE_HEAD = 256
"""Head sizes up to which a group takes 16 rows; else their queries would not fit."""
MATRIX = 16
"""Rows that are worth a matrix of tensor cores."""
TILES = ((64, 64, 1), (128, 32, 1), (WIDE_HEAD, 16, 2))
"""For heads up to a size, positions at a time that fit memory, and warps that share rows."""
WARPS = cores.ITEMS // 32
"""Of a group for tensor cores. Eight read keys less often, and took as long on an H200."""
FEW_ROWS = 32
"""Rows that are worth a smaller group."""


def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    shared.check(node)
    program = (by_tensor_cores if by_halves(node, facts) else in_f32)(node, facts)
    first, *joins = program.launches
    return Program((first, *(_by_warps(join, node) for join in joins)), program.scratch)


def in_f32(node: Tensor, facts: Facts) -> Program:
    """The program in f32."""
    rows, head = shared.rows_of(node), _head(node)
    if rows <= FEW_ROWS and head <= WIDE_HEAD:
        return shared.attend(
            ATTEND_FEW,
            node,
            facts,
            together=power_of_two(min(rows, FEW)),
            items=ITEMS_OF_FEW,
            shortest=SHORTEST_OF_FEW,
            most=MOST,
            defines={"LANES": power_of_two(blocks_of(head, EIGHT))},
        )
    together = 4 if head > WIDE_HEAD else 16
    return shared.attend(ATTEND, node, facts, together=together, items=ITEMS, shortest=SHORTEST)


def by_halves(node: Tensor, facts: Facts) -> bool:
    """Whether tensor cores compute it: many rows that share keys, of types and sizes that fit."""
    q, k, v = node.sources[:3]
    in_order = all(t is None or t.nb[0] == t.dtype.size for t in (q, node.operands[3]))
    if not (node.size and shared.rows_of(node) >= MATRIX and operations(node) >= facts.halves_from):
        return False
    return cores.fit(k.dtype, v.dtype) and _head(node) <= WIDE_HEAD and in_order


def by_tensor_cores(node: Tensor, facts: Facts) -> Program:
    """The program of attention that fits.

    Queries are scaled, then rounded to bf16 where keys and values are, else to f16; scores and sums
    are f32.
    """
    at_once, sides = next(tile for largest, *tile in TILES if _head(node) <= largest)
    return shared.attend(
        MMA_ATTEND,
        node,
        facts,
        together=WARPS * MATRIX // sides if shared.rows_of(node) > FEW_ROWS else FEW_ROWS,
        items=cores.ITEMS,
        shortest=SHORTEST,
        most=MOST,
        defines={
            **cores.defines(node.sources[1].dtype),
            **({"SOFTCAP": 1} if number(node, "softcap") else {}),
            "AT_ONCE": at_once,
            "WARPS": WARPS,
        },
    )


def _by_warps(join: Launch, node: Tensor) -> Launch:
    """The launch that joins parts, with the kernel of this backend: a group for each row, too."""
    return replace(join, kernel=JOIN, local=(ITEMS_OF_FEW, 1, 1), defines={"DV": node.ne[0]})


def operations(node: Tensor) -> int:
    """Multiplications and additions, masked ones too."""
    q, k, v = node.sources[:3]
    return 2 * (k.ne[0] + v.ne[0]) * k.ne[1] * q.ne[1] * q.ne[2] * q.ne[3]


def _head(node: Tensor) -> int:
    """The size of keys or values of a head, whichever is larger."""
    return max(tensor.ne[0] for tensor in node.sources[1:3])
