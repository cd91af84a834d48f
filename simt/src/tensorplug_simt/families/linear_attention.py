"""Linear attention: an item for each column of a head's state, or for several."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tensorplug.device import Group, Tensor, contiguous_nb
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import regions_of
from tensorplug_simt.lowering import NoKernel, lowers, need_type, need_types, number
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch, region

TEXT = "tensorplug_simt:kernels/linear_attention.k"
LARGEST = 256
"""The largest head whose column an item can hold."""
_TOGETHER = 32
"""Items of a group where each of them has one column."""
_LANES = 16
"""Columns of an item where a group is one item."""


def _kernel(name: str, sources: tuple[str, ...], numbers: tuple[tuple[str, str], ...]) -> Kernel:
    return Kernel(name, TEXT, (*sources, "state", "y"), ("y",), numbers)


_DELTA_NUMBERS = (("scale", "float"), ("slots", "int"))
KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (
            _kernel("rwkv_wkv6", ("k", "v", "r", "tf", "td"), ()),
            _kernel("rwkv_wkv7", ("r", "w", "k", "v", "a", "b"), ()),
            _kernel("gated_linear_attn", ("k", "v", "q", "g"), (("scale", "float"),)),
            _kernel("gated_delta_net", ("q", "k", "v", "g", "beta"), _DELTA_NUMBERS),
        )
    }
)
_NET = KERNELS["gated_delta_net"]
KEEPING = Kernel(_NET.name, TEXT, (*_NET.buffers, "kept"), ("y", "kept"), _DELTA_NUMBERS)
"""With a place of their own for states."""


@lowers("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn")
def recurrence(node: Tensor, facts: Facts) -> Program:
    """One state for each head of each sequence, whose tokens follow each other."""
    numbers = {"scale": number(node, "scale")} if "scale" in node.params else {}
    return _columns(node, node.sources[-1].ne[1], facts, numbers)


@lowers("gated_delta_net")
def gated_delta_net(node: Tensor, facts: Facts) -> Program:
    """States that learn what they got wrong, the last ones kept."""
    return _delta_net(node, facts, {})


def keep_states(group: Group, facts: Facts) -> Program:
    """The same with states in the memory of the copy, and none in the result's own."""
    return _delta_net(group["net"], facts, {"kept": _rows(group["kept"], group["net"])})


def _rows(kept: Tensor, node: Tensor) -> Region:
    """`kept` as a row of states for each sequence and slot."""
    need_type(kept)
    size, heads, _, sequences = node.sources[2].ne
    ne = (size * size * heads, sequences, int(number(node, "K")), 1)
    if kept.is_contiguous:
        return Region(kept, kept.dtype, ne, contiguous_nb(kept.dtype, ne))
    if kept.ne != ne or kept.nb[0] != kept.dtype.size:
        raise NoKernel(f"no kernel for states in {kept}")
    return region(kept)


def _delta_net(node: Tensor, facts: Facts, more: Mapping[str, Region]) -> Program:
    v = node.sources[2]
    numbers = {"scale": 1 / math.sqrt(max(v.ne[0], 1)), "slots": int(number(node, "K"))}
    return _columns(node, v.ne[3], facts, numbers, more)


def _columns(
    node: Tensor,
    sequences: int,
    facts: Facts,
    numbers: dict[str, Any],
    more: Mapping[str, Region] = MappingProxyType({}),
) -> Program:
    need_types(node, frozenset({F32}))
    kernel = KEEPING if more else KERNELS[node.op]
    regions: dict[str, Tensor | Region] = {**regions_of(KERNELS[node.op], node), **more}
    size, heads = regions["v"].ne[:2]
    if size > LARGEST:
        raise NoKernel(f"heads of {size} elements; the kernel ends at {LARGEST}")
    lanes, together = (_LANES, 1) if facts.wide else (1, _TOGETHER)
    groups = (blocks_of(size, lanes * together), heads, sequences)
    defines = {"SIZE": size, "LANES": lanes}
    made = launch(kernel, regions, groups=groups, local=(together,), defines=defines, **numbers)
    return Program((made,))
