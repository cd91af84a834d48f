"""Rows sorted in parts, which are then merged two by two."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32, I64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import LIMIT, NoKernel, lowers, need_type
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch

TEXT = "tensorplug_simt:kernels/sort.k"
PART = 2048
"""Elements that are sorted in the memory of a group: 16 KiB, so that devices with 32 run two."""
ITEMS = 512

KEYS = ("keys", "y")


SORT_PART = Kernel("sort_part", TEXT, ("x", *KEYS), KEYS, (("parts", "int"), ("descending", "int")))
MERGE_PARTS = Kernel(
    "merge_parts",
    TEXT,
    KEYS,
    KEYS,
    (("count", "uint"), ("run", "int"), ("side", "int"), ("last", "int")),
)


@lowers("argsort", "top_k")
def order(node: Tensor, facts: Facts) -> Program:
    """Indices of each row in rising or falling order of the elements, or the first k of them."""
    return in_parts(node, facts)


def in_parts(node: Tensor, facts: Facts, *, largest: int = PART) -> Program:
    """The same where a group sorts `largest` elements at most, a power of two, in 8 bytes each."""
    (x,) = node.sources
    need_type(x, frozenset({F32}))
    part = _part(x.ne[0], largest)
    items = min(ITEMS, facts.max_group, part // 2)
    parts = blocks_of(x.ne[0], part)
    keys = keys_of(x)
    regions: dict[str, Tensor | Region] = {"x": x, "y": node}
    if parts > 1:
        regions["keys"] = keys
    first = launch(
        SORT_PART,
        regions,
        groups=(parts * x.ne[1], x.ne[2], x.ne[3]),
        local=(items,),
        defines={"PART": part, "GROUP_SIZE": items},
        parts=parts,
        descending=int(is_descending(node)),
    )
    if parts == 1:
        return Program((first,))
    return Program((first, *_merges(node, keys, part, facts)), scratch=keys.nbytes)


def _merges(node: Tensor, keys: Region, part: int, facts: Facts) -> list[Launch]:
    """Launches that double the length of sorted runs, from one half of `keys` to the other.

    At first runs have `part` elements.
    """
    length, rows = keys.ne[:2]
    runs = [part]
    while runs[-1] * 2 < length:
        runs.append(runs[-1] * 2)
    return [
        per_element(
            MERGE_PARTS,
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
    return scratch(I64, (length, rows, 2, 1))


def _part(length: int, largest: int) -> int:
    """Room in the memory of a group: less for short rows, so that more groups run at once."""
    return next((part for part in (largest // 64, largest // 8) if length <= part), largest)
