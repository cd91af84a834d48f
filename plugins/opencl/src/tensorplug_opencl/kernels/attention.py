"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from collections.abc import Mapping
from typing import Any

from tensorplug.dtypes import BF16, F16, F32
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels.softmax import largest_power
from tensorplug_opencl.kernels.table import OWN
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_opencl:kernels/attention.cl"

_NUMBERS = (
    *((name, "int") for name in ("tiles", "splits", "share", "even")),
    *((name, "float") for name in ("scale", "softcap", "max_bias")),
)
_BUFFERS = ("q", "k", "v", "mask", "sinks", "part", "y")

ROW = Kernel("attend_row", TEXT, _BUFFERS, ("part", "y"), _NUMBERS)
TILE = Kernel("attend_tile", TEXT, _BUFFERS, ("part", "y"), _NUMBERS)
JOIN = Kernel("attend_join", TEXT, ("part", "sinks", "y"), ("y",))

_SHORTEST = 256
"""Positions that are worth a group of their own."""
_GROUPS = 4
"""Groups for each unit of the device, where there are enough positions."""
_LONGEST = 1024
"""The largest head size for which a group's memory holds queries."""


@lowers("flash_attn_ext", table=OWN)
def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    named = zip(("q", "k", "v", "mask", "sinks"), node.operands, strict=True)
    places: dict[str, Tensor | Region] = {name: t for name, t in named if t is not None}
    q, k, v = node.sources[:3]
    _check(node)
    if not 0 < k.ne[0] <= _LONGEST or v.ne[0] > _LONGEST:
        raise NoKernel(f"heads of {k.ne[0]} and {v.ne[0]} elements; kernels take 1 to {_LONGEST}")
    rows = q.ne[1] * q.ne[2] // k.ne[2]
    together = _rows(rows, k.ne[2] * q.ne[3], k.ne[0], facts)
    tiles = blocks_of(rows, together)
    share = _share(k.ne[1], tiles * k.ne[2] * q.ne[3], facts)
    splits = max(1, blocks_of(k.ne[1], share))
    part = _parts(node, splits)
    where = places | {"part": part, "y": node} if splits > 1 else places | {"y": node}
    main = launch(
        ROW if facts.wide else TILE,
        where,
        groups=(tiles * splits, k.ne[2], q.ne[3]),
        local=(1 if facts.wide else 8 * together,),
        defines={"ROWS": together, "DK": k.ne[0], "DV": v.ne[0], **_packed(k, v, facts)},
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
    for tensor in (k, v):
        if tensor.dtype.is_block and tensor.ne[0] % tensor.dtype.block:
            raise NoKernel(f"rows of {tensor.ne[0]} end within a block of {tensor.dtype.name}")


def _rows(rows: int, others: int, size: int, facts: Facts) -> int:
    """Rows that share keys and are computed together; there are so many `others` beside them."""
    if facts.wide:
        rows = max(rows, 1)
        fewest = min(facts.units, rows * others)
        return next(n for n in (4, 2, 1) if n < 2 * rows and blocks_of(rows, n) * others >= fewest)
    # Queries of so many rows and a tile of keys and scores fit 32 KiB.
    most = 16 if size <= 256 else 8 if size <= 640 else 4
    return min(most, 4 if rows <= 4 else 8 if rows <= 8 else 16)


def _share(positions: int, groups: int, facts: Facts) -> int:
    """Positions of one group: a multiple of 32."""
    splits = max(1, min(_GROUPS * facts.units // max(groups, 1), positions // _SHORTEST))
    return blocks_of(max(1, blocks_of(positions, splits)), 32) * 32


def _packed(k: Tensor, v: Tensor, facts: Facts) -> Mapping[str, int]:
    """Whether keys and values are loaded as vectors."""
    if not facts.wide:
        return {}
    named = {"K_PACKED": k, "V_PACKED": v}
    return {name: 1 for name, t in named.items() if t.nb[0] == t.dtype.size}


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
