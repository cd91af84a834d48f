"""Shape and type rules that families of ops share."""

from tensorplug.dtypes import BF16, DTYPES, F16, F32, FLOATS, I32, I64, INTEGERS, DType
from tensorplug.graph.tensor import Ne, Tensor
from tensorplug.ops.table import Call, Check, Shape, ShapeRule, TypeRule

ANY = frozenset(DTYPES)
PLAIN = FLOATS | INTEGERS
BLOCKS = frozenset(dtype for dtype in DTYPES if dtype.is_block)
REAL = frozenset({F32, F16, BF16})
ONLY_F32 = frozenset({F32})
IDS = frozenset({I32})
ROW_IDS = frozenset({I32, I64})


def same_shape_as(source: str) -> ShapeRule:
    """The result has the sizes of `source`."""

    def rule(call: Call) -> Shape:
        return call[source].ne, call[source].rank

    return rule


def same_type_as(source: str) -> TypeRule:
    """The result has the type of `source`."""

    def rule(call: Call) -> DType:
        return call[source].dtype

    return rule


def always(dtype: DType) -> TypeRule:
    """The result has the type `dtype`, whatever the sources are."""
    return lambda _call: dtype


def one_per_row(source: str) -> ShapeRule:
    """The result has one element for each row of `source`; dimension 0 gets size 1."""

    def rule(call: Call) -> Shape:
        x = call[source]
        return (1, x.ne[1], x.ne[2], x.ne[3]), x.rank

    return rule


def scalar(_call: Call) -> Shape:
    """The result is one element and has no dimensions."""
    return (1, 1, 1, 1), 0


def repeats_to(small: str, large: str) -> Check:
    """Each size of `small` divides the same size of `large`."""

    def check(call: Call) -> None:
        if not can_repeat(call[small], call[large].ne):
            raise call.fail(f"{small} does not repeat to the shape of {large}")

    return check


def can_repeat(small: Tensor, ne: Ne) -> bool:
    """True if a tensor of sizes `ne` is made of whole copies of `small`."""
    return all(divides(n, want) for n, want in zip(small.ne, ne, strict=True))


def divides(n: int, total: int) -> bool:
    """True if `total` is a multiple of `n`; the only multiple of 0 is 0."""
    return total % n == 0 if n else total == 0


def repeat_over_batch(small: Tensor, large: Tensor) -> bool:
    """True if dimensions 2 and 3 of `large` are multiples of those of `small`."""
    return divides(small.ne[2], large.ne[2]) and divides(small.ne[3], large.ne[3])


def overlap(source: Tensor, target: Tensor, *, equal: bool = False) -> bool:
    """True if two different views of one root may share bytes.

    The test compares the first and last bytes of the views, so views with interleaved elements
    count as overlapping. A view and an equal view of the same elements count with `equal` only:
    for ops that read elements in another order than they write them.
    """
    if source.root is not target.root or not (source.size and target.size):
        return False
    start, other = source.view_offset, target.view_offset
    if not equal and start == other and source.same_layout(target):
        return False
    return start < other + target.nbytes and other < start + source.nbytes


def check_max_bias(call: Call) -> None:
    """`max_bias` is not negative, and above 0 only with a mask."""
    max_bias = call.number("max_bias")
    if not max_bias >= 0:
        raise call.fail(f"max_bias = {max_bias:g}; it must not be negative")
    if max_bias and call.get("mask") is None:
        raise call.fail("max_bias scales a mask, but there is no mask")


def overlaps_itself(dtype: DType, ne: Ne, nb: Ne) -> bool:
    """True if two elements (blocks, of a block type) of this layout may share bytes.

    That is where a step is shorter than all elements of the shorter steps together: exact, except
    for steps such as 8 and 12 bytes that interleave without a common element.
    """
    counts = (dtype.row_size(ne[0]) // dtype.size, *ne[1:])
    extent = dtype.size
    for step, n in sorted((step, n) for step, n in zip(nb, counts, strict=True) if n > 1):
        if step < extent:
            return 0 not in ne
        extent += (n - 1) * step
    return False


def check_written(*sources: str) -> Check:
    """No two elements of a source that the op writes share bytes: their order is not defined."""

    def check(call: Call) -> None:
        for name in sources:
            written = call[name]
            if overlaps_itself(written.dtype, written.ne, written.nb):
                raise call.fail(
                    f"elements of {name}, which is written, overlap: sizes {written.ne}, strides "
                    f"{written.nb} bytes; give them bytes of their own"
                )

    return check


def same_shapes(first: str, second: str) -> Check:
    """Both sources have equal sizes. The check passes if one is absent."""

    def check(call: Call) -> None:
        a, b = call.get(first), call.get(second)
        if a is not None and b is not None and a.ne != b.ne:
            raise call.fail(f"{first} and {second} differ in shape")

    return check


def contiguous(source: str) -> Check:
    """The source is contiguous."""

    def check(call: Call) -> None:
        if not call[source].is_contiguous:
            raise call.fail(f"{source} must be contiguous; insert cont()")

    return check
