"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from collections.abc import Mapping
from typing import Any

from tensorplug.dtypes import BF16, F16, F32
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.softmax import largest_power
from tensorplug_cuda.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_cuda:kernels/attention.cu"

_NUMBERS = (
    *((name, "int") for name in ("tiles", "splits", "share", "even")),
    *((name, "float") for name in ("scale", "softcap", "max_bias")),
)
ATTEND = Kernel(
    "attend", TEXT, ("q", "k", "v", "mask", "sinks", "part", "y"), ("part", "y"), _NUMBERS
)
JOIN = Kernel("attend_join", TEXT, ("part", "sinks", "y"), ("y",))

ITEMS = 128
SHORTEST = 128
"""Positions that are worth a group of their own."""
GROUPS = 4
"""Groups for each unit of the device, where there are enough positions."""
LONGEST = 1024
"""The largest head size for which a group's memory holds queries."""
WIDE_HEAD = 256
"""Head sizes up to which a group takes 16 rows; else their queries would not fit."""


@lowers("flash_attn_ext", table=OWN)
def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    named = zip(("q", "k", "v", "mask", "sinks"), node.operands, strict=True)
    places: dict[str, Tensor | Region] = {name: t for name, t in named if t is not None}
    q, k, v = node.sources[:3]
    _check(node)
    rows = q.ne[1] * q.ne[2] // k.ne[2]
    together = 16 if rows > 4 and max(k.ne[0], v.ne[0]) <= WIDE_HEAD else 4
    tiles = blocks_of(rows, together)
    share = _share(k.ne[1], tiles * k.ne[2] * q.ne[3], facts)
    splits = max(1, blocks_of(k.ne[1], share))
    part = _parts(node, splits)
    where = places | {"part": part, "y": node} if splits > 1 else places | {"y": node}
    main = launch(
        ATTEND,
        where,
        groups=(tiles * splits, k.ne[2], q.ne[3]),
        local=(ITEMS,),
        defines={"ROWS": together, "DK": k.ne[0], "DV": v.ne[0]},
        tiles=tiles,
        splits=splits,
        share=share,
        even=largest_power(q.ne[2]),
        **_scales(node),
    )
    if splits == 1:
        return Program((main,))
    return Program((main, _joined(node, part, places, facts)), scratch=part.nbytes)


def _check(node: Tensor) -> None:
    q, k, v = node.sources[:3]
    for tensor in node.sources[1:]:
        if not tensor.dtype.is_block:
            need_type(tensor, frozenset({F32, F16, BF16}))
    need_type(q, frozenset({F32}))
    if node.nb[0] != F32.size:
        raise NoKernel("the result's elements do not follow each other")
    if not 0 < k.ne[0] <= LONGEST or v.ne[0] > LONGEST:
        raise NoKernel(f"heads of {k.ne[0]} and {v.ne[0]} elements; kernels take 1 to {LONGEST}")
    for tensor in (k, v):
        if tensor.dtype.is_block and tensor.ne[0] % tensor.dtype.block:
            raise NoKernel(f"rows of {tensor.ne[0]} end within a block of {tensor.dtype.name}")


def _share(positions: int, groups: int, facts: Facts) -> int:
    """Positions of one group: a multiple of 32."""
    splits = max(1, min(GROUPS * facts.units // max(groups, 1), positions // SHORTEST))
    return blocks_of(max(1, blocks_of(positions, splits)), 32) * 32


def _scales(node: Tensor) -> dict[str, Any]:
    softcap = number(node, "softcap")
    return {
        "scale": number(node, "scale") / (softcap or 1.0),
        "softcap": softcap,
        "max_bias": number(node, "max_bias"),
    }


def _parts(node: Tensor, splits: int) -> Region:
    """Scratch memory for the largest score, the sum and the values of each part of each row."""
    width, heads, tokens, batch = node.ne
    rows, row = heads * tokens * batch, (width + 2) * F32.size
    nb = (F32.size, row, row * splits, row * splits * rows)
    return scratch(F32, (width + 2, splits, rows, 1), nb)


def _joined(
    node: Tensor, part: Region, places: Mapping[str, Tensor | Region], facts: Facts
) -> Launch:
    sinks = {"sinks": places["sinks"]} if "sinks" in places else {}
    return per_row(JOIN, {"part": part, "y": node, **sinks}, node.ne[1:], facts)
