"""Launches of common shapes: an item for each element, a group for each row."""

from collections.abc import Mapping

from tensorplug.device import Tensor
from tensorplug.graph.tensor import Ne
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import NoKernel
from tensorplug_simt.program import Kernel, Launch, Number, Region, blocks_of, launch

Regions = Mapping[str, Tensor | Region]
"""What a launch is given, by the names of its buffers: regions, or tensors as they are."""

LARGEST = 512
"""Items of a group that takes a row; each has several elements of a row of thousands."""
EACH = 4
"""Elements of a row that are worth an item."""


def regions_of(kernel: Kernel, node: Tensor) -> dict[str, Tensor]:
    """The operands that `node` has, by the names of the buffers of `kernel`; its result is last."""
    named = zip(kernel.buffers, (*node.operands, node), strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def repeated(tensor: Tensor, ne: Ne) -> Region:
    """`tensor` with the sizes `ne`: what it has once is repeated by strides of 0.

    Raises NoKernel where several of its rows would be repeated.
    """
    if any(have not in (1, wanted) for have, wanted in zip(tensor.ne, ne, strict=True)):
        raise NoKernel(f"no kernel that repeats {tensor}")
    b0, b1, b2, b3 = (b if n > 1 else 0 for n, b in zip(tensor.ne, tensor.nb, strict=True))
    return Region(tensor, tensor.dtype, ne, (b0, b1, b2, b3))


def power_of_two(count: int) -> int:
    """The lowest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def group_size(length: int, facts: Facts) -> int:
    """Items for a row of `length`: one on wide devices, else whole warps, a power of two."""
    if facts.wide:
        return 1
    size, largest = 32, min(LARGEST, facts.max_group)
    while size < largest and size * EACH < length:
        size *= 2
    return size


def per_element(
    kernel: Kernel,
    regions: Regions,
    count: int,
    facts: Facts,
    *,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, Number] | None = None,
    **more: Number,
) -> Launch:
    """One item for each of `count` elements: `FLAT_INDEX`, to be compared with `p.count`."""
    size = facts.flat_group
    return launch(
        kernel,
        regions,
        groups=(blocks_of(count, size),),
        local=(size,),
        defines=defines,
        numbers={"count": count, **(numbers or {}), **more},
    )


def per_row(
    kernel: Kernel,
    regions: Regions,
    rows: tuple[int, int, int],
    facts: Facts,
    *,
    items: int = 0,
    defines: Mapping[str, int | str] | None = None,
    numbers: Mapping[str, Number] | None = None,
    **more: Number,
) -> Launch:
    """One group of `GROUP_SIZE` items for each row: `GROUP_X`, `GROUP_Y` and `GROUP_Z` are its
    indices 1, 2 and 3. There are as many items as `facts` say, one on wide devices, or `items`."""
    size = items or facts.row_group
    return launch(
        kernel,
        regions,
        groups=rows,
        local=(size,),
        defines={"GROUP_SIZE": size, **(defines or {})},
        numbers={**(numbers or {}), **more},
    )
