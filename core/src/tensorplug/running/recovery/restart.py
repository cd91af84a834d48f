"""`Restart`: the boundary at which a failed run resumes, and the values that the rest reads."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tensorplug.device.device import Device
from tensorplug.device.ranges import Range, range_of, ranges
from tensorplug.device.transfer import read
from tensorplug.errors import DeviceError, DeviceHung, OutOfMemory
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Tensor
from tensorplug.planning.split import Split
from tensorplug.running.failure import Attempt, written

if TYPE_CHECKING:
    from tensorplug.running.batch import Batch


class NotFromHere(Exception):
    """The reason why a run cannot resume at a boundary."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A boundary: `done` is computed, and `values` are what the rest reads of it.

    `begun` are nodes of the rest that were begun before and may have written something. The
    boundary was behind the first `after` splits of a plan that may be another one by now.
    """

    after: int
    done: frozenset[Tensor]
    begun: frozenset[Tensor]
    values: Mapping[Tensor, Array] = field(default_factory=dict)

    def first_of(self, graph: Graph) -> Tensor | None:
        """The node with which the rest begins; None where only outputs are left to be read."""
        return next((n for n in graph.nodes if not n.is_view and n not in self.done), None)

    def skips(self, splits: Sequence[Split]) -> int:
        """The number of splits before the boundary in a plan that was cut at it."""
        return sum(split.nodes[0] in self.done for split in splits)


def boundaries(attempt: Attempt) -> list[Restart]:
    """The boundaries behind splits of an attempt that are done, the latest first; no values yet.

    The one from which the attempt began itself is the last.
    """
    if attempt.schedule is None:
        return []
    splits, start = attempt.schedule.splits, attempt.start
    earlier = frozenset() if start is None else start.begun
    found = []
    for after in range(attempt.completed, attempt.skipped, -1):
        done = frozenset(n for split in splits[:after] for n in split.nodes)
        begun = frozenset(n for split in splits[after : attempt.begun] for n in split.nodes)
        found.append(Restart(after, done, begun | (earlier - done)))
    if start is not None:
        begun = frozenset(n for s in splits[attempt.skipped : attempt.begun] for n in s.nodes)
        found.append(replace(start, begun=begun | earlier))
    return found


def needed(graph: Graph, done: Collection[Tensor]) -> list[Tensor]:
    """The roots, persistent ones apart, whose values the rest of a graph reads when `done` is."""
    rest = [n for n in graph.nodes if n not in done and not n.is_view]
    used = [root for n in rest for root in (*(s.root for s in n.sources), *n.written_roots)]
    used += [t.root for t in (*graph.outputs, *graph.effects)]
    changed = set(written(done))
    return [
        root
        for root in dict.fromkeys(used)
        if root.place is None and root.size and (root in done or (root.is_leaf and root in changed))
    ]


def with_values(attempt: Attempt, restart: Restart, lost: set[Device]) -> Restart:
    """`restart` with the values that the rest reads. Raises NotFromHere.

    They are read from devices that are not `lost`, where nothing that was queued later may have
    written over them. A device that hangs then is lost too.
    """
    if attempt.start is not None and restart.done == attempt.start.done:
        return restart
    schedule, batch = attempt.schedule, attempt.context.batch
    assert schedule is not None
    roots = needed(schedule.graph, restart.done)
    if not batch.plans:
        raise NotFromHere("nothing of it is left")
    lately = schedule.splits[attempt.skipped : restart.after]
    changed = set(written(n for split in lately for n in split.nodes))
    known = {} if attempt.start is None else attempt.start.values
    values = {
        root: known[root]
        if root in known and root not in changed
        else _value(attempt, batch, root, restart.after, lost)
        for root in roots
    }
    return replace(restart, values=values)


def _value(attempt: Attempt, batch: "Batch", root: Tensor, after: int, lost: set[Device]) -> Array:
    """Read `root`, or one of its copies, behind the first `after` splits. Raises NotFromHere."""
    reasons = []
    for tensor, written_from, copied_from in _places(attempt, root, after):
        place = batch.bindings.where(tensor)
        device = place.buffer.type.device
        span = range_of(tensor, place)
        if device in lost:
            reasons.append(f"{root} lay on {device.name}")
        elif _may_be_written(span, attempt, batch, written_from, copied_from):
            reasons.append(f"{root} may have been written over on {device.name}")
        else:
            try:
                get = partial(read, tensor, batch.bindings)
                return attempt.runs.limit.call(get, device)
            except (DeviceError, OutOfMemory) as error:
                lost.update((device,) if isinstance(error, DeviceHung) else ())
                reasons.append(f"{root} cannot be read: {error}")
    raise NotFromHere(reasons[0])


def _places(attempt: Attempt, root: Tensor, after: int) -> Iterator[tuple[Tensor, int, int]]:
    """Tensors with the value of `root`, each with two numbers of splits.

    Nodes may overwrite its memory from the first split on, copies from the second.
    """
    assert attempt.schedule is not None
    yield root, after, after
    splits = attempt.schedule.splits[attempt.skipped : after]
    if all(root not in node.written_roots for split in splits for node in split.nodes):
        for split in splits:
            for copy in split.copies:
                if copy.source is root:
                    # Its memory is free when the last node has read it, perhaps in this split.
                    yield copy.target, split.index, split.index + 1


def _may_be_written(
    span: Range, attempt: Attempt, batch: "Batch", written_from: int, copied_from: int
) -> bool:
    """True if splits that were queued, or copies for them, may write `span`."""
    assert attempt.schedule is not None
    reached = attempt.begun if attempt.split is None else max(attempt.begun, attempt.split + 1)
    splits = attempt.schedule.splits[:reached]
    return any(
        span.overlaps(range_of(copy.target, batch.bindings.where(copy.target)))
        for split in splits[copied_from:]
        for copy in split.copies
    ) or any(
        writes and span.overlaps(other)
        for split, bindings in zip(splits[written_from:], batch.locals[written_from:], strict=False)
        for node in split.nodes
        for _, other, writes in ranges(node, bindings)
    )
