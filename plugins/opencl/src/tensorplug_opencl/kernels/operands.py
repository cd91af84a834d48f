"""What kernels of matrix products multiply: `Operands`, with rows of f32 and few matrices."""

from dataclasses import dataclass, field, replace
from math import prod

from tensorplug.device import Tensor
from tensorplug.dtypes import F32, I32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import copies
from tensorplug_simt.families.product import repeats
from tensorplug_simt.grids import Regions, per_element
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Number,
    Program,
    Region,
    blocks_of,
    launch,
    region,
    scratch,
)

TEXT = "tensorplug_opencl:kernels/product.cl"
QUANTISE = Kernel("quantise", TEXT, ("x", "y"), ("y",), (("count", "uint"),), reusable=True)
LISTS = Kernel("expert_lists", TEXT, ("ids", "lists", "y"), ("lists", "y"), (("experts", "int"),))

RECORD = 16
"""Elements of a record of quantised rows."""


@dataclass(frozen=True, slots=True)
class Operands:
    """`y` = rows of `x` against rows of `w`, matrix by matrix.

    Matrix [c, d] of `x` meets matrix [c // repeat2, d // repeat3] of `w`. With `experts`, there is
    either one matrix for each row of `y`, and `ids` among `experts`, or one for each expert, and
    the `lists` of its rows. `before` makes what lies in `scratch` bytes of scratch memory.
    """

    w: Region
    x: Region
    y: Region
    experts: dict[str, Tensor | Region] = field(default_factory=dict)
    before: tuple[Launch, ...] = ()
    scratch: int = 0

    @property
    def repeats(self) -> dict[str, Number]:
        """How many matrices of `x` along dimensions 2 and 3 meet one of `w`."""
        return repeats(self.w, self.w if self.experts else self.x)

    @property
    def matrices(self) -> int:
        """How many matrices kernels go through."""
        if "lists" in self.experts:
            return self.w.ne[2]
        return self.pairs if self.experts else self.x.ne[2] * self.x.ne[3]

    @property
    def pairs(self) -> int:
        """Rows of `y`, over all tokens."""
        return self.y.ne[1] * self.y.ne[2]

    @property
    def rows(self) -> int:
        """Rows of `x` that meet one matrix of `w`, at most."""
        if "lists" in self.experts:
            return self.pairs
        return 1 if self.experts else self.x.ne[1]

    @property
    def regions(self) -> dict[str, Tensor | Region]:
        """What kernels are given."""
        return {"w": self.w, "x": self.x, **self.experts, "y": self.y}

    @property
    def defines(self) -> dict[str, int | str]:
        """What kernels of experts are told."""
        return {"EXPERTS": 1} if self.experts else {}

    def program(self, product: Launch) -> Program:
        """The launch after those that make its operands."""
        return Program((*self.before, product), self.scratch)


def rows_in_order(w: Tensor | Region) -> bool:
    """Whether the rows of `w` have no gaps within them."""
    return w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block


def operands(node: Tensor) -> Operands:
    """The operands of a `mul_mat` or `mul_mat_id` as they are."""
    w, x = (region(source) for source in node.sources[:2])
    these = Operands(w, x, region(node))
    if node.op == "mul_mat":
        return _joined(these)
    ids = node.sources[2]
    if these.pairs < 2 * w.ne[2]:
        return replace(these, experts={"ids": ids})
    return _listed(these, ids)


def _listed(these: Operands, ids: Tensor) -> Operands:
    """The rows sorted by their experts first."""
    experts = these.w.ne[2]
    lists = scratch(I32, (experts + 1 + these.pairs, 1, 1, 1), these.scratch)
    regions: Regions = {"ids": ids, "lists": lists, "y": these.y}
    sort = launch(LISTS, regions, groups=(experts + 1,), experts=experts)
    return replace(_after(these, (sort,), lists), experts={"lists": lists})


def packed(these: Operands, facts: Facts) -> Operands:
    """The same with rows of `x` of f32 without gaps."""
    x = these.x
    if x.dtype is F32 and (x.nb[0] == F32.size or x.ne[0] == 1):
        return these
    y = scratch(F32, x.ne, these.scratch)
    return replace(_after(these, copies(x, y, facts), y), x=y)


def quantised(these: Operands, facts: Facts) -> Operands:
    """The same with rows of `x` of records: 16 signed bytes, their scale, sum times scale."""
    x = these.x
    records = x.ne[0] // RECORD
    y = scratch(I32, (records * (RECORD // 4 + 2), *x.ne[1:]), these.scratch)
    quantise = per_element(QUANTISE, {"x": x, "y": y}, records * prod(x.ne[1:]), facts)
    return replace(_after(these, (quantise,), y), x=y)


def _after(these: Operands, before: tuple[Launch, ...], made: Region) -> Operands:
    """The same after more launches, which make what lies in `made`."""
    size = blocks_of(made.nbytes, 128) * 128
    return replace(these, before=(*these.before, *before), scratch=these.scratch + size)


def _joined(these: Operands) -> Operands:
    """The matrices of `x` that meet one of `w` as one matrix, where steps allow it."""
    for axis in (2, 3):
        repeat = these.x.ne[axis] // these.w.ne[axis]
        if axis == 3 and these.x.ne[2] > 1:
            return these
        x, y = (_join(memory, axis, repeat) for memory in (these.x, these.y))
        if x is not None and y is not None:
            these = replace(these, x=x, y=y)
    return these


def _join(memory: Region, axis: int, repeat: int) -> Region | None:
    """`repeat` matrices along `axis` as the rows of one; None where they have no common step."""
    rows, ne, nb = memory.ne[1], list(memory.ne), list(memory.nb)
    if rows > 1 and nb[axis] != rows * nb[1]:
        return None
    nb[1] = nb[1] if rows > 1 else nb[axis]
    ne[1], ne[axis], nb[axis] = rows * repeat, ne[axis] // repeat, nb[axis] * repeat
    return replace(memory, ne=(ne[0], ne[1], ne[2], ne[3]), nb=(nb[0], nb[1], nb[2], nb[3]))
