"""Chooses how a node runs on several devices: the way of its op's rule that moves fewest bytes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorplug.dtypes import F32
from tensorplug.errors import Refusal
from tensorplug.graph.tensor import Tensor
from tensorplug.meta.state import SUMMANDS, WHOLE, Partition
from tensorplug.ops.split import MIRRORED, PARTIAL, Way, result_axis
from tensorplug.ops.table import OPS, Call

States = Sequence[Partition | None]
"""The state of each operand; None for an absent operand."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """A way to run a node: the states that its operands must have, and the state of its result.

    Without a `way`, every device computes the whole node. `begins` is where the part that the
    result covers starts in each device's slice of the first operand. `cost` is the data moved.
    """

    way: Way | None
    wanted: States
    result: Partition
    begins: tuple[int, ...]
    cost: "Cost"
    why: str


class Cost(NamedTuple):
    """The number of stored tensors (weights) that are gathered, then the bytes moved.

    Gathering a stored tensor defeats the purpose of cutting it, so `stored` counts first.
    """

    stored: int = 0
    bytes: int = 0


def gather_bytes(tensor: Tensor, devices: int) -> int:
    """Bytes that all devices receive in an all-gather of `tensor`."""
    return (devices - 1) * tensor.nbytes


def reduce_bytes(tensor: Tensor, devices: int) -> int:
    """Bytes that all devices receive in a butterfly all-reduce of `tensor`.

    Devices beyond the largest power of two add their summand to a partner and get the sum back.
    """
    pairs = devices.bit_length() - 1
    whole = 1 << pairs
    return (2 * (devices - whole) + whole * pairs) * tensor.nbytes


def call_of(node: Tensor) -> Call:
    """The op call that `node` stands for."""
    return Call(OPS[node.op], node.operands, node.params)


@dataclass(frozen=True, slots=True)
class Use:
    """A node, the states of its operands, and the facts that decide how it runs.

    Operands with an index in `fixed` are written, so their state must not change. An `exported`
    result is gathered in the end. `lonely` returns True for a tensor with one reader: summands with
    more readers have to be summed for the other readers anyway.
    """

    node: Tensor
    states: States
    devices: int
    fixed: Collection[int] = ()
    exported: bool = False
    lonely: Callable[[Tensor], bool] = lambda _: True

    @property
    def names(self) -> list[str]:
        """The names that the op table gives the operands."""
        return [source.name for source in OPS[self.node.op].sources]


def choices(use: Use) -> list[Sharding]:
    """The ways to run a node, cheapest first; one of them runs it whole on every device."""
    call, states = call_of(use.node), use.states
    whole = [None if s is None else WHOLE for s in states]
    mirrored = Sharding(None, whole, WHOLE, (), _cost(use, whole), "its sources are mirrored")
    if whole == list(states):
        return [mirrored]
    found = [
        candidate
        for way in call.op.split(call)
        for candidate in _candidates(use, way)
        if all(candidate.wanted[i] == states[i] for i in use.fixed)
    ]
    found.sort(key=lambda c: (c.cost, sum(a != b for a, b in zip(c.wanted, states, strict=True))))
    better = [c for c in found if c.cost <= mirrored.cost]
    worse = [c for c in found if c.cost > mirrored.cost]
    return [*better, replace(mirrored, why=_why_whole(call, states)), *worse]


def _why_whole(call: Call, states: States) -> str:
    answer = result_axis(call, [None if s is None else s.axis for s in states])
    return answer.reason if isinstance(answer, Refusal) else "moves fewer bytes than its parts"


def _candidates(use: Use, way: Way) -> Iterator[Sharding]:
    names, node = use.names, use.node
    axes = [way.sources.get(n, MIRRORED) for n in names]
    if any(n in way.sources and s is None for n, s in zip(names, use.states, strict=True)):
        return
    sums = PARTIAL in (*axes, way.result)
    if sums and (node.dtype is not F32 or not _has_summands(use, axes)):
        return
    for reference in _references(axes, use.states):
        made = _wanted(use, way, axes, reference)
        if made is not None:
            wanted, result, begins = made
            now = _cost(use, wanted)
            cost = Cost(now.stored, now.bytes + _later(use, result))
            yield Sharding(way, wanted, result, begins, cost, _why(names, wanted))


def _later(use: Use, result: Partition) -> int:
    """Bytes that a result in state `result` will make later steps move."""
    if result != SUMMANDS:
        return gather_bytes(use.node, use.devices) if use.exported else 0
    shared = [
        t
        for t, s in zip(use.node.operands, use.states, strict=True)
        if t is not None and s == SUMMANDS and not use.lonely(t)
    ]
    return sum(reduce_bytes(t, use.devices) for t in (use.node, *shared))


def _has_summands(use: Use, axes: Sequence[object]) -> bool:
    """False if a way needs summands and no source has summands, or one is not f32."""
    if PARTIAL not in axes:
        return True
    summed = [
        (t, s)
        for a, t, s in zip(axes, use.node.operands, use.states, strict=True)
        if a is PARTIAL and t is not None
    ]
    return all(t.dtype is F32 for t, _ in summed) and any(s == SUMMANDS for _, s in summed)


def _references(axes: Sequence[object], states: States) -> list[int | None]:
    """Indices of operands that are already cut along the way's axis; the others follow one."""
    cut = [i for i, a in enumerate(axes) if isinstance(a, int)]
    if not cut:
        return [None]
    return [i for i in cut if (s := states[i]) is not None and s.axis == axes[i]]


def _wanted(
    use: Use, way: Way, axes: Sequence[object], reference: int | None
) -> tuple[States, Partition, tuple[int, ...]] | None:
    """States of operands and result, and `begins`, with the cut of operand `reference`.

    None if that cut does not fit another operand or the result.
    """
    node, operands = use.node, use.node.operands
    cut = use.states[reference] if reference is not None else None
    wanted: list[Partition | None] = []
    for axis, tensor in zip(axes, operands, strict=True):
        state: Partition | None = WHOLE
        if tensor is None:
            wanted.append(None)
            continue
        if axis is PARTIAL:
            state = SUMMANDS
        elif isinstance(axis, int) and cut is not None:
            state = cut.scaled(axis, tensor.ne[axis])
            if state is None or not state.fits(tensor) or tensor.splits_blocks:
                same = state is not None and state == cut and tensor is operands[reference or 0]
                if not same:
                    return None
        wanted.append(state)
    if not isinstance(way.result, int):
        return wanted, SUMMANDS, ()
    if cut is None:
        return None
    begins: tuple[int, ...] = ()
    if way.within is not None:
        ranged = cut.within(*way.within)
        if ranged is None:
            return None
        cut, begins = ranged
    result = cut.scaled(way.result, node.ne[way.result])
    if result is None or not (result.fits(node) or node.splits_blocks):
        return None
    return wanted, result, begins


def _cost(use: Use, wanted: States) -> Cost:
    stored = moved = 0
    for tensor, have, want in zip(use.node.operands, use.states, wanted, strict=True):
        if tensor is None or have is None or have in (want, WHOLE):
            continue
        moved += (reduce_bytes if have == SUMMANDS else gather_bytes)(tensor, use.devices)
        stored += tensor.root.place is not None
    return Cost(stored, moved)


def _why(names: Sequence[str], wanted: States) -> str:
    parts = [
        f"{name} {'partial' if s == SUMMANDS else f'cut along {s.axis}'}"
        for name, s in zip(names, wanted, strict=True)
        if s is not None and s != WHOLE
    ]
    return f"runs on parts with {' and '.join(parts)}"
