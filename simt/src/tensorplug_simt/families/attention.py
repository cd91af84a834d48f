"""Attention in one op: few rows split their positions over groups, whose parts are then joined."""

from collections.abc import Mapping
from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import BF16, F16, F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.softmax import SLOPE, largest_power
from tensorplug_simt.grids import Regions, per_row
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_simt:kernels/attention.k"
"""Its own kernels, and what those of backends share: places and ends of rows."""

BUFFERS = ("q", "k", "v", "mask", "sinks", "part", "y")
NUMBERS = (
    *((name, "int") for name in ("tiles", "splits", "share", "even", "group", "batches")),
    *((name, "float") for name in ("scale", "softcap", "max_bias")),
)
SHORTEST = 256
"""Positions that are worth a group of their own."""
GROUPS = 4
"""Groups for each unit of the device, where there are enough positions."""
LONGEST = 1024
"""The largest head size for which a group's memory holds queries."""


def main_kernel(name: str, text: str, *parts: str) -> Kernel:
    """A kernel that computes tiles of rows, or a part of them for a share of the positions."""
    return Kernel(name, text, BUFFERS, ("part", "y"), NUMBERS, parts)


ATTEND = main_kernel("attend", TEXT, SLOPE)
JOIN = Kernel("attend_join", TEXT, ("part", "sinks", "y"), ("y",))
"""Makes results of the parts."""


@lowers("flash_attn_ext")
def flash_attn_ext(node: Tensor, facts: Facts) -> Program:
    """Softmax of scaled, capped and masked scores, times values."""
    check(node)
    rows, size = rows_of(node), max(t.ne[0] for t in node.sources[1:3])
    # Queries of this many rows and a tile of keys and scores fit 32 KiB.
    most = 16 if size <= 256 else 8 if size <= 640 else 4
    together = min(most, 4 if rows <= 4 else 8 if rows <= 8 else 16)
    items = 8 * together
    return attend(
        ATTEND,
        node,
        facts,
        together=together,
        items=items,
        shortest=SHORTEST,
        defines={"GROUP_SIZE": items},
    )


def check(node: Tensor) -> None:
    """Raise NoKernel for types, layouts and sizes of heads that kernels do not take."""
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
    if not 0 < k.ne[0] <= LONGEST or v.ne[0] > LONGEST:
        raise NoKernel(f"heads of {k.ne[0]} and {v.ne[0]} elements; kernels take 1 to {LONGEST}")


def rows_of(node: Tensor) -> int:
    """Rows of queries that share keys and values."""
    q, k = node.sources[:2]
    return q.ne[1] * q.ne[2] // k.ne[2]


def attend(
    kernel: Kernel,
    node: Tensor,
    facts: Facts,
    *,
    together: int,
    items: int,
    shortest: int,
    most: int = GROUPS,
    defines: Mapping[str, int] | None = None,
) -> Program:
    """The program of a node that `check` let pass, with a `main_kernel`.

    A group of `items` takes `together` rows; from `shortest` on positions are worth a group, up to
    `most` groups for each unit of the device.
    """
    q, k, v = node.sources[:3]
    named = zip(BUFFERS[:5], node.operands, strict=True)
    regions: dict[str, Tensor | Region] = {name: t for name, t in named if t is not None}
    tiles = blocks_of(rows_of(node), together)
    share = _share(k.ne[1], tiles * k.ne[2] * q.ne[3], shortest, most * facts.units)
    splits = max(1, blocks_of(k.ne[1], share))
    part = _parts(node, splits)
    first = launch(
        kernel,
        regions | {"part": part, "y": node} if splits > 1 else regions | {"y": node},
        groups=(tiles * splits, k.ne[2], q.ne[3]),
        local=(items,),
        defines={"ROWS": together, "DK": k.ne[0], "DV": v.ne[0], **(defines or {})},
        tiles=tiles,
        splits=splits,
        share=share,
        even=largest_power(q.ne[2]),
        group=q.ne[2] // k.ne[2],
        batches=q.ne[3] // k.ne[3],
        **_scales(node),
    )
    if splits == 1:
        return Program((first,))
    return Program((first, _joined(node, part, regions, facts)), scratch=part.nbytes)


def _share(positions: int, groups: int, shortest: int, most: int) -> int:
    """Positions of one group, of which there are up to `most`: a multiple of 32."""
    splits = max(1, min(most // max(groups, 1), positions // shortest))
    return blocks_of(max(1, blocks_of(positions, splits)), 32) * 32


def _scales(node: Tensor) -> dict[str, Any]:
    """The numbers that scores are scaled, capped and sloped with."""
    softcap = number(node, "softcap")
    return {
        "scale": number(node, "scale") / (softcap or 1.0),
        "softcap": softcap,
        "max_bias": number(node, "max_bias"),
    }


def _parts(node: Tensor, splits: int) -> Region:
    """Scratch memory for the largest score, the sum and the values of each part of each row."""
    width, heads, tokens, batch = node.ne
    return scratch(F32, (width + 2, splits, heads * tokens * batch, 1))


def _joined(node: Tensor, part: Region, regions: Regions, facts: Facts) -> Launch:
    sinks = {"sinks": regions["sinks"]} if "sinks" in regions else {}
    return per_row(JOIN, {"part": part, "y": node, **sinks}, node.ne[1:], facts)
