"""Metal: the source of a launch, and how Apple's compiler has to take it."""

from tensorplug_simt.dialects.cuda import symbol
from tensorplug_simt.dialects.dialect import METAL
from tensorplug_simt.facts import Facts
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source

MOST_BUFFERS = 31
"""Places for buffers that a kernel has."""

MOST_LOCAL = 32 * 1024
"""Bytes of local memory (threadgroup memory) that every Apple GPU of these days grants a group."""

SIMDGROUP = 32
"""Items of a simdgroup, for which the texts are written; `threadExecutionWidth` of a pipeline."""

APPLE = Facts(
    wide=False,
    max_group=1024,
    local_memory=MOST_LOCAL,
    subgroup=SIMDGROUP,
    subgroup_required=True,
    fp16=True,
)
"""What all of Apple's GPUs since the M1 have."""

FAST_MATH = False
"""What `setFastMathEnabled_` gets, or `setMathMode_` safe from macOS 15 on: texts look for NaN."""


def metal_source(launch: Launch, *, parts: int = 0) -> str:
    """The complete Metal Shading Language of the kernel of `launch`, under its `symbol`.

    Buffer i is that of the i-th of `launch.regions`; the parameter block lies in a buffer of its
    own after them, `setBytes` or any other. With `parts` it is that of launches merged into one.
    """
    text = source(launch, METAL, parts=parts)
    return text.replace(f"void {launch.kernel.name}(", f"void {symbol(launch)}(", 1)


__all__ = [
    "APPLE",
    "FAST_MATH",
    "MOST_BUFFERS",
    "MOST_LOCAL",
    "SIMDGROUP",
    "metal_source",
    "symbol",
]
