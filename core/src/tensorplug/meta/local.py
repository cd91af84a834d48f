"""The tensors of a single device: slices, parts of nodes, and leafs for received data."""

from collections.abc import Sequence

from tensorplug.graph.tensor import Ne, Tensor, contiguous_nb
from tensorplug.meta.choose import Sharding, call_of
from tensorplug.meta.state import Partition
from tensorplug.ops.copy import computed_over
from tensorplug.ops.split import Shard
from tensorplug.ops.table import OPS, apply
from tensorplug.ops.view import view_ne


def local_ne(tensor: Tensor, state: Partition, device: int) -> Ne:
    """Sizes (`ne`) of one device's part of `tensor` in `state`."""
    axis = state.axis
    if not isinstance(axis, int):
        return tensor.ne
    ne = (*tensor.ne[:axis], state.size(device), *tensor.ne[axis + 1 :])
    return (ne[0], ne[1], ne[2], ne[3])


def like(tensor: Tensor, ne: Ne) -> Tensor:
    """A contiguous leaf with sizes `ne` and the dtype, rank and name of `tensor`."""
    return Tensor(tensor.dtype, ne, contiguous_nb(tensor.dtype, ne), tensor.rank, name=tensor.name)


def as_is(tensor: Tensor) -> Tensor:
    """A leaf with the dtype, sizes, strides, rank and name of `tensor`."""
    return Tensor(tensor.dtype, tensor.ne, tensor.nb, tensor.rank, name=tensor.name)


def slice_of(whole: Tensor, state: Partition, device: int) -> Tensor | None:
    """A device's slice as a view of `whole`; None if the slice has several pieces."""
    ne, pieces, axis = local_ne(whole, state, device), state.pieces(device), state.axis
    if not isinstance(axis, int) or len(pieces) > 1 or whole.splits_blocks:
        return None
    if not pieces:
        return like(whole, ne)
    per = whole.dtype.block if axis == 0 else 1
    offset = pieces[0][0] // per * whole.nb[axis]
    return view_ne(whole, ne, whole.nb, rank=whole.rank, offset=offset, name=whole.name)


def is_in_place(node: Tensor) -> bool:
    """True if `node` was made in place by the user (`in_place`), not by its op's definition."""
    return node.writes and OPS[node.op].alias is None


def written_operands(node: Tensor) -> list[int]:
    """Indices of the operands whose memory `node` writes."""
    also = set(node.also_writes)
    if not node.writes:
        return []
    target = aliased(node)
    return [i for i, t in enumerate(node.operands) if t is not None and (t is target or t in also)]


def aliased(node: Tensor) -> Tensor:
    """The operand whose memory `node` shares; `node` is a view or a write."""
    record = OPS[node.op]
    if record.alias is not None:
        return record.alias(call_of(node)).source
    named = (node.operands[record.positions[name]] for name in record.in_place)
    return next(t for t in named if t is not None and _over(node, t))


def _over(node: Tensor, source: Tensor) -> bool:
    here = (source.root, source.view_offset) == (node.root, node.view_offset)
    return here and source.same_layout(node)


def part_of(
    node: Tensor, choice: Sharding, operands: Sequence[Tensor | None], device: int
) -> Tensor:
    """The part of `node` that one device computes.

    Raises the op's errors, such as ShapeError, for a part that its rules do not allow.
    """
    record, params = OPS[node.op], node.params
    if choice.way is not None:
        begin = choice.begins[device] if choice.begins else 0
        size = choice.result.size(device) if choice.result.is_cut else 0
        shard = Shard(choice.way, tuple(operands), size, begin)
        params = record.shard(call_of(node), shard)
    made = apply(record, *operands, name=node.name, **params)
    if not is_in_place(node):
        return made
    # Slices may have other strides than their tensors, so in_place() could choose another source.
    target = operands[node.operands.index(aliased(node))]
    assert target is not None
    return computed_over(made, operands, target)
