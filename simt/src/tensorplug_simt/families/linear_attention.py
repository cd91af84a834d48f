"""Linear attention: an item for each column of a head's state, or for several."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tensorplug.dtypes import F32
from tensorplug.tensor import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import NoKernel, lowers, need_types, number
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

TEXT = "tensorplug_simt:kernels/linear_attention.k"
LARGEST = 256
"""The largest head whose column an item can hold."""
_TOGETHER = 32
"""Items of a group that have a column each."""
_LANES = 16
"""Columns of an item that is alone in its group."""


def _kernel(name: str, sources: tuple[str, ...], numbers: tuple[tuple[str, str], ...]) -> Kernel:
    return Kernel(name, TEXT, (*sources, "state", "y"), ("y",), numbers)


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (
            _kernel("rwkv_wkv6", ("k", "v", "r", "tf", "td"), ()),
            _kernel("rwkv_wkv7", ("r", "w", "k", "v", "a", "b"), ()),
            _kernel("gated_linear_attn", ("k", "v", "q", "g"), (("scale", "float"),)),
            _kernel(
                "gated_delta_net",
                ("q", "k", "v", "g", "beta"),
                (("scale", "float"), ("slots", "int")),
            ),
        )
    }
)


@lowers("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn")
def recurrence(node: Tensor, facts: Facts) -> Program:
    """One state for each head of each sequence, whose tokens follow each other."""
    numbers = {"scale": number(node, "scale")} if "scale" in node.params else {}
    return _columns(node, node.sources[-1].ne[1], facts, numbers)


@lowers("gated_delta_net")
def gated_delta_net(node: Tensor, facts: Facts) -> Program:
    """States that learn what they got wrong, the last ones kept."""
    v = node.sources[2]
    numbers = {"scale": 1 / math.sqrt(max(v.ne[0], 1)), "slots": int(number(node, "K"))}
    return _columns(node, v.ne[3], facts, numbers)


def _columns(node: Tensor, sequences: int, facts: Facts, numbers: dict[str, Any]) -> Program:
    need_types(node, frozenset({F32}))
    kernel = KERNELS[node.op]
    places = dict(zip(kernel.buffers, (*node.sources, node), strict=True))
    size, heads = places["v"].ne[:2]
    if size > LARGEST:
        raise NoKernel(f"heads of {size} elements; the kernel ends at {LARGEST}")
    lanes, together = (_LANES, 1) if facts.wide else (1, _TOGETHER)
    groups = (blocks_of(size, lanes * together), heads, sequences)
    return Program(
        (
            launch(
                kernel,
                places,
                groups=groups,
                local=(together,),
                defines={"SIZE": size, "LANES": lanes},
                **numbers,
            ),
        )
    )
