"""Many elements to one, along rows or over all; running sums."""

from dataclasses import replace
from math import inf, prod

from tensorplug.device import Tensor
from tensorplug.dtypes import F32, I32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import is_contiguous
from tensorplug_simt.families.elements import COUNT, steps
from tensorplug_simt.grids import Regions, per_element, per_row, regions_of
from tensorplug_simt.lowering import lowers, need_types
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, region, scratch

TEXT = "tensorplug_simt:kernels/reduce.k"
SUMS = ("tensorplug_simt:kernels/sums.k",)
"""A part of kernels that sum over rows."""

_XY, _Y = ("x", "y"), ("y",)
SUMMED_ROWS = Kernel("summed_rows", TEXT, _XY, _Y, (("factor", "float"),), SUMS)
SUMMED = Kernel("summed", TEXT, _XY, _Y, (COUNT, ("rows", "uint"), ("length", "int")), SUMS)
CUMULATED = Kernel("cumulated", TEXT, _XY, _Y, parts=SUMS)
LARGEST = Kernel("largest", TEXT, _XY, _Y, parts=SUMS)
COUNTED = Kernel("counted", TEXT, ("a", "b", "y"), _Y, (COUNT,), SUMS)
SUMMED_BACK = Kernel("summed_back", TEXT, _XY, _Y, (COUNT,), SUMS)

MOST_PARTS = 256
"""Groups that share a sum of all elements."""
PART_ROW = 1024
"""Elements that are summed at a time where all lie in order."""


def parts(count: int) -> Region:
    """Scratch memory for the results of `count` groups."""
    return scratch(F32, (count, 1, 1, 1))


def row_sums(x: Region, y: Region, facts: Facts, *, factor: float = 1.0) -> Launch:
    """The sum of each row of `x`, times `factor`."""
    regions = {"x": x, "y": y}
    _, a, b, c = y.ne
    return per_row(SUMMED_ROWS, regions, (a, b, c), facts, defines=steps(regions), factor=factor)


@lowers("sum")
def sum_all(node: Tensor, facts: Facts) -> Program:
    """The sum of all elements: groups sum rows, then one sums what they found."""
    need_types(node)
    x = region(node.sources[0])
    count = prod(x.ne)
    flat = is_contiguous(x)
    length = PART_ROW if flat else max(x.ne[0], 1)
    rows = blocks_of(count, length)
    some = parts(min(max(rows, 1), MOST_PARTS))
    regions = {"x": x, "y": some}
    defines: dict[str, int | str] = dict(steps(regions))
    if flat:
        defines |= {"FLAT": 1, "STEP_x": "x_bytes"}
    numbers = {"count": count, "rows": rows, "length": length}
    groups = (some.ne[0], 1, 1)
    first = per_row(SUMMED, regions, groups, facts, defines=defines, numbers=numbers)
    return Program((first, row_sums(some, region(node), facts)), scratch=some.nbytes)


@lowers("sum_rows", "mean")
def sum_rows(node: Tensor, facts: Facts) -> Program:
    """The sum or the mean of each row."""
    need_types(node)
    x = node.sources[0]
    factor = 1.0 if node.op == "sum_rows" else (1.0 / x.ne[0] if x.ne[0] else inf)
    return Program((row_sums(region(x), region(node), facts, factor=factor),))


@lowers("cumsum")
def cumsum(node: Tensor, facts: Facts) -> Program:
    """Running sums along rows."""
    need_types(node)
    regions = {"x": region(node.sources[0]), "y": region(node)}
    return Program((per_row(CUMULATED, regions, node.ne[1:], facts, defines=steps(regions)),))


@lowers("argmax")
def argmax(node: Tensor, facts: Facts) -> Program:
    """The index of the first largest element of each row."""
    regions = {"x": region(node.sources[0]), "y": region(node)}
    return Program((per_row(LARGEST, regions, (node.ne[0], 1, 1), facts, defines=steps(regions)),))


@lowers("count_equal")
def count_equal(node: Tensor, facts: Facts) -> Program:
    """The number of places at which two tensors are equal."""
    a, b = (region(t) for t in node.sources)
    count = node.sources[0].size
    groups = min(max(blocks_of(count, PART_ROW), 1), MOST_PARTS)
    counts = replace(parts(groups), dtype=I32)
    first = per_row(COUNTED, {"a": a, "b": b, "y": counts}, (groups, 1, 1), facts, count=count)
    regions: Regions = {"a": counts, "b": counts, "y": node}
    last = per_row(COUNTED, regions, (1, 1, 1), facts, defines={"TOTAL": 1}, count=groups)
    return Program((first, last), scratch=counts.nbytes)


@lowers("repeat_back")
def repeat_back(node: Tensor, facts: Facts) -> Program:
    """Parts that lay side by side, summed."""
    need_types(node)
    return Program((per_element(SUMMED_BACK, regions_of(SUMMED_BACK, node), node.size, facts),))
