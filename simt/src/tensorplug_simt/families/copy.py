"""Copies: to other memory, other layout, other type; joined, tiled, or into a part of a tensor."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import ANY, LONG_ROW, TEXT, copies, row_copies, units
from tensorplug_simt.families.encode import encoded, need_encoder
from tensorplug_simt.families.rows import NUMBERS
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import NoKernel, lowers, need_type, number
from tensorplug_simt.program import Kernel, Program, Region, region

ADDED = Kernel("added", TEXT, ("x", "y"), ("y",), (("count", "uint"),))


@lowers("dup", "cont", "cpy")
def copy(node: Tensor, facts: Facts) -> Program:
    """Elements of the first source in order; bit by bit where the type stays."""
    x = node.sources[0]
    if x.splits_blocks:
        raise NoKernel("blocks that a transposition would split")
    if x.dtype is not node.dtype:
        if not x.dtype.is_block:
            need_type(x, NUMBERS)
        if node.dtype.is_block:
            need_encoder(node.dtype)
            return Program((encoded(region(x), region(node), facts),))
        need_type(node, NUMBERS)
    return Program(copies(region(x), region(node), facts))


@lowers("concat")
def concat(node: Tensor, facts: Facts) -> Program:
    """b after a along a dimension."""
    a, b = node.sources
    dim = int(number(node, "dim"))
    start = a.ne[dim] * node.nb[dim]
    first = Region(node, node.dtype, a.ne, node.nb)
    second = Region(node, node.dtype, b.ne, node.nb, start)
    return Program((*copies(region(a), first, facts), *copies(region(b), second, facts)))


@lowers("repeat")
def repeat(node: Tensor, facts: Facts) -> Program:
    """Copies of x side by side."""
    (tensor,) = node.sources
    x, y = units(region(tensor)), units(region(node))
    if x.ne == y.ne:
        return Program(copies(x, y, facts))
    if tensor.has_contiguous_rows and x.ne[0] == y.ne[0] >= LONG_ROW:
        return Program((row_copies(x, y, facts, {"RAW": 1}),))
    return Program((per_element(ANY, {"x": x, "y": y}, node.size, facts, defines={"RAW": 1}),))


@lowers("acc", "set")
def into_part(node: Tensor, facts: Facts) -> Program:
    """A copy of `a` with `part` added to, or put into, a window of it."""
    a, part = node.sources
    nb1, nb2, nb3, offset = (int(number(node, n)) for n in ("nb1", "nb2", "nb3", "offset"))
    window = Region(node, F32, part.ne, (F32.size, nb1, nb2, nb3), offset)
    before = copies(region(a), region(node), facts)
    if node.op == "set":
        return Program((*before, *copies(region(part), window, facts)))
    if not part.size:
        return Program(before)
    return Program((*before, per_element(ADDED, {"x": part, "y": window}, part.size, facts)))
