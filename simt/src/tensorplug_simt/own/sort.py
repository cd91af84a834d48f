"""Rows sorted in parts, which are then merged two by two."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32, I64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import LIMIT, NoKernel, need_type
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_simt:kernels/sort.k"
"""For devices where a part of a row is the work of a group: `by_groups`."""

KEYS = ("keys", "y")


def part_kernels(text: str) -> tuple[Kernel, Kernel]:
    """The sections of `text` that sort a part of a row, and that merge two parts."""
    parts = (("parts", "int"), ("descending", "int"))
    merging = (("count", "uint"), ("run", "int"), ("side", "int"), ("last", "int"))
    return (
        Kernel("sort_part", text, ("x", *KEYS), KEYS, parts),
        Kernel("merge_parts", text, KEYS, KEYS, merging),
    )


KERNELS = part_kernels(TEXT)


def _merges(kernel: Kernel, node: Tensor, keys: Region, part: int, facts: Facts) -> list[Launch]:
    """Launches that double the length of sorted runs, from one half of `keys` to the other.

    At first runs have `part` elements.
    """
    length, rows = keys.ne[:2]
    runs = [part]
    while runs[-1] * 2 < length:
        runs.append(runs[-1] * 2)
    return [
        per_element(
            kernel,
            {"keys": keys, "y": node},
            length * rows,
            facts,
            run=run,
            side=i % 2,
            last=int(run == runs[-1]),
        )
        for i, run in enumerate(runs)
    ]


def is_descending(node: Tensor) -> bool:
    """Whether the largest elements come first."""
    return node.op == "top_k" or bool(node.params["descending"])


def keys_of(x: Tensor) -> Region:
    """Scratch memory for two halves, each with a number for every element of x."""
    length, rows = x.ne[0], x.rows
    if 2 * x.size > LIMIT:
        raise NoKernel(f"{x} has more than {LIMIT // 2} elements")
    row = length * I64.size
    return scratch(I64, (length, rows, 2, 1), (I64.size, row, row * rows, 2 * row * rows))


def by_groups(node: Tensor, facts: Facts, *, largest: int, items: int) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them.

    A group of `items` at most sorts `largest` elements, a power of two, in 8 bytes each.
    """
    (x,) = node.sources
    part = _part(x.ne[0], largest)
    return in_parts(KERNELS, node, facts, part=part, items=min(items, part // 2))


def in_parts(
    kernels: tuple[Kernel, Kernel], node: Tensor, facts: Facts, *, part: int, items: int
) -> Program:
    """The same with `part_kernels` and any size of parts and groups."""
    (x,) = node.sources
    sorting, merging = kernels
    need_type(x, frozenset({F32}))
    parts = blocks_of(x.ne[0], part)
    keys = keys_of(x)
    places: dict[str, Tensor | Region] = {"x": x, "y": node}
    if parts > 1:
        places["keys"] = keys
    first = launch(
        sorting,
        places,
        groups=(parts * x.ne[1], x.ne[2], x.ne[3]),
        local=(items,),
        defines={"PART": part, "GROUP_SIZE": items},
        parts=parts,
        descending=int(is_descending(node)),
    )
    if parts == 1:
        return Program((first,))
    return Program((first, *_merges(merging, node, keys, part, facts)), scratch=keys.nbytes)


def _part(length: int, largest: int) -> int:
    """Room in the memory of a group: less for short rows, so that more groups run at once."""
    return next((part for part in (largest // 64, largest // 8) if length <= part), largest)
