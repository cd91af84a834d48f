"""What kernels of matrix products multiply: `Operands`, with rows of f32 and few matrices."""

from dataclasses import dataclass, replace

from tensorplug.dtypes import F32
from tensorplug.tensor import Ne, Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.program import Kernel, Launch, Region, region, scratch

PACK = Kernel(
    "pack",
    "tensorplug_opencl:kernels/product.cl",
    ("x", "y"),
    ("y",),
    (("count", "uint"),),
)


@dataclass(frozen=True, slots=True)
class Operands:
    """`y` = rows of `x` against rows of `w`, matrix by matrix.

    Matrix [c, d] of `x` meets matrix [c // repeat2, d // repeat3] of `w`. `before` makes `x` in
    `scratch` bytes of scratch memory, where it is not that of a node.
    """

    w: Region
    x: Region
    y: Region
    before: tuple[Launch, ...] = ()
    scratch: int = 0

    @property
    def repeat2(self) -> int:
        return self.x.ne[2] // self.w.ne[2]

    @property
    def repeat3(self) -> int:
        return self.x.ne[3] // self.w.ne[3]

    @property
    def matrices(self) -> int:
        """How many matrices of `x` there are."""
        return self.x.ne[2] * self.x.ne[3]


def rows_in_order(w: Tensor) -> bool:
    """Whether the rows of `w` have no gaps within them."""
    return w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block


def operands(node: Tensor, facts: Facts) -> Operands:
    """The operands of a `mul_mat`; `x` is copied unless its rows are f32 without gaps."""
    w, x = node.sources
    ready, before, size = packed(x, facts)
    return joined(Operands(region(w), ready, region(node), before, size))


def packed(x: Tensor, facts: Facts) -> tuple[Region, tuple[Launch, ...], int]:
    """`x` with rows of f32 without gaps, what makes it so, and bytes of scratch memory for that."""
    if x.dtype is F32 and (x.nb[0] == F32.size or x.ne[0] == 1):
        return region(x), (), 0
    y = scratch(F32, x.ne, _strides(x.ne))
    return y, (per_element(PACK, {"x": x, "y": y}, x.size, facts),), F32.size * x.size


def _strides(ne: Ne) -> Ne:
    a, b, c, _ = ne
    return (F32.size, F32.size * a, F32.size * a * b, F32.size * a * b * c)


def joined(these: Operands) -> Operands:
    """The matrices of `x` that meet one of `w` as one matrix, where steps allow it."""
    for axis in (2, 3):
        repeat = these.x.ne[axis] // these.w.ne[axis]
        if axis == 3 and these.x.ne[2] > 1:
            return these
        x, y = (_joined(place, axis, repeat) for place in (these.x, these.y))
        if x is not None and y is not None:
            these = replace(these, x=x, y=y)
    return these


def _joined(place: Region, axis: int, repeat: int) -> Region | None:
    """`repeat` matrices along `axis` as the rows of one; None where they have no common step."""
    rows, ne, nb = place.ne[1], list(place.ne), list(place.nb)
    if rows > 1 and nb[axis] != rows * nb[1]:
        return None
    nb[1] = nb[1] if rows > 1 else nb[axis]
    ne[1], ne[axis], nb[axis] = rows * repeat, ne[axis] // repeat, nb[axis] * repeat
    return replace(place, ne=(ne[0], ne[1], ne[2], ne[3]), nb=(nb[0], nb[1], nb[2], nb[3]))
