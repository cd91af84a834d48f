"""Elements at other places: padded, rolled, in bands and windows, by relative position."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import LONG_ROW, PART, copies
from tensorplug_simt.grids import per_element, per_row, regions_of
from tensorplug_simt.lowering import LIMIT, NoKernel, lowers, need_types, number
from tensorplug_simt.program import Kernel, Number, Program, Region, blocks_of, region

TEXT = "tensorplug_simt:kernels/layout.k"

_COUNTS = (("count", "uint"), ("parts", "int"))
_PADS = tuple((name, "int") for name in ("kind", "l0", "l1", "l2", "l3"))
PADDED = Kernel("padded", TEXT, ("x", "y"), ("y",), (*_COUNTS, *_PADS))
BANDED = Kernel("banded", TEXT, ("x", "y"), ("y",), (*_COUNTS, ("first", "int"), ("last", "int")))
PARTED = Kernel("parted", TEXT, ("x", "y"), ("y",), (*_COUNTS, ("w", "int"), ("across", "int")))
JOINED = Kernel("joined", TEXT, ("x", "y"), ("y",), (*_COUNTS, ("w", "int"), ("across", "int")))
POSITIONED = Kernel("positioned", TEXT, ("x", "across", "down", "y"), ("y",), _COUNTS)

ZEROS, ROUND, MIRROR = range(3)
"""What stands around x, as its kernel names it."""

BANDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "upper_diag": (0, LIMIT),
        "upper": (1, LIMIT),
        "lower_diag": (-LIMIT, 0),
        "lower": (-LIMIT, -1),
    }
)
"""First and last diagonal of each kind of triangle."""


def _each_place(kernel: Kernel, node: Tensor, facts: Facts, **numbers: Number) -> Program:
    """One launch over all elements of `node`: by rows where those are long."""
    need_types(node)
    regions = regions_of(kernel, node)
    if node.ne[0] < LONG_ROW:
        numbers["parts"] = 1
        return Program((per_element(kernel, regions, node.size, facts, numbers=numbers),))
    numbers |= {"count": node.size, "parts": blocks_of(node.ne[0], PART)}
    grid = (node.ne[1] * int(numbers["parts"]), node.ne[2], node.ne[3])
    return Program(
        (per_row(kernel, regions, grid, facts, defines={"PART": PART}, numbers=numbers),)
    )


def _counts(node: Tensor, name: str) -> tuple[int, ...]:
    value = node.params[name]
    if not isinstance(value, tuple) or not all(isinstance(n, int) for n in value):
        raise NoKernel(f"parameter {name} is {value!r}, no integers")
    return tuple(int(n) for n in value if isinstance(n, int))


def _padded(node: Tensor, facts: Facts, kind: int, before: tuple[int, ...]) -> Program:
    l0, l1, l2, l3 = before
    return _each_place(PADDED, node, facts, kind=kind, l0=l0, l1=l1, l2=l2, l3=l3)


@lowers("pad")
def pad(node: Tensor, facts: Facts) -> Program:
    """x between zeros, or between what comes round."""
    kind = ROUND if node.params["circular"] else ZEROS
    return _padded(node, facts, kind, _counts(node, "pads")[::2])


@lowers("pad_reflect_1d")
def pad_reflect_1d(node: Tensor, facts: Facts) -> Program:
    """x between its mirror images."""
    return _padded(node, facts, MIRROR, (int(number(node, "p0")), 0, 0, 0))


@lowers("roll")
def roll(node: Tensor, facts: Facts) -> Program:
    """y[i] = x[i - shift], round and round."""
    pairs = zip(_counts(node, "shifts"), node.ne, strict=True)
    return _padded(node, facts, ROUND, tuple(shift % max(n, 1) for shift, n in pairs))


@lowers("diag")
def diag(node: Tensor, facts: Facts) -> Program:
    """Vectors on diagonals."""
    return _each_place(BANDED, node, facts, first=0, last=0)


@lowers("diag_mask_zero")
def diag_mask_zero(node: Tensor, facts: Facts) -> Program:
    """0 right of diagonal n_past."""
    last = int(number(node, "n_past"))
    return _each_place(BANDED, node, facts, first=-LIMIT, last=last)


@lowers("tri")
def tri(node: Tensor, facts: Facts) -> Program:
    """One half of each matrix, 0 in the other."""
    first, last = BANDS[str(node.params["kind"])]
    return _each_place(BANDED, node, facts, first=first, last=last)


@lowers("get_rel_pos")
def get_rel_pos(node: Tensor, facts: Facts) -> Program:
    """y[:, k, q] = x[:, kh - 1 - k + q]: a copy whose steps along k go backwards."""
    (x,) = node.sources
    need_types(node)
    step = x.nb[1]
    start = (node.ne[1] - 1) * step
    taken = Region(x, x.dtype, node.ne, (x.nb[0], -step, step, 0), start)
    return Program(copies(taken, region(node), facts))


@lowers("add_rel_pos")
def add_rel_pos(node: Tensor, facts: Facts) -> Program:
    """x + ph by the key's row + pw by its column."""
    return _each_place(POSITIONED, node, facts)


@lowers("win_part")
def win_part(node: Tensor, facts: Facts) -> Program:
    """An image cut into windows, zeros beyond its edges."""
    w = int(number(node, "w"))
    across = blocks_of(node.sources[0].ne[1], w)
    return _each_place(PARTED, node, facts, w=w, across=across)


@lowers("win_unpart")
def win_unpart(node: Tensor, facts: Facts) -> Program:
    """The image whose windows are x."""
    w = int(number(node, "w"))
    return _each_place(JOINED, node, facts, w=w, across=blocks_of(node.ne[1], w))
