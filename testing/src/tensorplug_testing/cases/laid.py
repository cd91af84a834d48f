"""A built case in memory of a device, with guard bytes around every tensor."""

from dataclasses import dataclass, replace

import tensorplug as tp
from tensorplug.device import BufferType, MultiBuffer, Rounding, Tensor, allocate, leaf, transfer
from tensorplug_cpu import reference
from tensorplug_testing.cases.case import Built, Case, build, redrawn
from tensorplug_testing.cases.compare import difference
from tensorplug_testing.cases.expected import expected

SENTINEL = 0xA5
_GUARD = leaf("guard", (256,), tp.I8)


@dataclass(frozen=True, slots=True)
class Laid:
    """A built case and the memory of its tensors."""

    case: Case
    built: Built
    bindings: tp.Bindings
    buffers: MultiBuffer
    apart: BufferType | None = None
    """The buffer type of the first leaf, if its layout is not standard."""

    @property
    def bound(self) -> tp.Part:
        """The part that a backend plans."""
        return tp.Part.of(self.built.graph, self.bindings)

    @property
    def roots(self) -> list[Tensor]:
        """Leafs and nodes that have memory of their own."""
        return _roots(self.built.graph)

    def write_leafs(self) -> None:
        """Write the values of the leafs."""
        for root, stored in self.built.stored.items():
            transfer.write(root, stored, self.bindings)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The roots that the node writes: one for most nodes."""
        return self.built.node.written_roots or (self.built.node.root,)

    def redrawn(self, base: int = 0, again: int = 1) -> "Laid":
        """The same memory with other values for every leaf, which `write_leafs` then writes."""
        return replace(self, built=redrawn(self.case, self.built, base, again))

    def problem(self, rounding: Rounding = Rounding.NONE) -> str:
        """Describe what is wrong after a run, with the id and seed to repeat it; empty if all is
        right.

        `rounding` is the rounding that the stream declares for the node.
        """
        found = self._wrong_values(rounding) or self.changed_leafs() or self.changed_guards()
        return found and f"{self.case.id} (seed {self.built.seed}): {found}"

    def _wrong_values(self, rounding: Rounding) -> str:
        for root, wanted in zip(self.results, expected(self.built, self.results), strict=True):
            got = reference.decode(root.dtype, transfer.read(root, self.bindings))
            exact = wanted.reshape(root.shape)
            found = difference(self.case, self.built, got, exact, rounding)
            if found:
                return found
        return ""

    def changed_leafs(self) -> str:
        """Name a source that was changed; empty if none was."""
        for root, stored in self.built.stored.items():
            if root in self.results or self.bindings.where(root).buffer.type is self.apart:
                continue
            now = transfer.read(root, self.bindings)
            if now.tobytes() != stored.tobytes():
                return f"source {root} was changed"
        return ""

    def changed_guards(self) -> str:
        """Name a changed byte outside all tensors; empty if there is none."""
        for part in self.buffers.parts:
            changed = part.read(0, part.size) != SENTINEL
            for root in self.roots:
                place = self.bindings.where(root)
                if place.buffer is part:
                    changed[place.offset : place.offset + _room(root, part.type)] = False
            if changed.any():
                at = int(changed.argmax())
                return f"byte {at} outside all tensors was changed{self._after(part, at)}"
        return ""

    def _after(self, part: tp.Buffer, at: int) -> str:
        """Name the last tensor that ends before byte `at` of `part`, and the distance to its end;
        empty before the first tensor."""
        ends = [
            (place.offset + root.nbytes, root)
            for root in self.roots
            if (place := self.bindings.where(root)).buffer is part and place.offset < at
        ]
        if not ends:
            return ""
        end, root = max(ends, key=lambda found: found[0])
        return f", {at - end} after the end of {root}"


def lay(
    case: Case,
    buffer_type: BufferType,
    *,
    weights: BufferType | None = None,
    base: int = 0,
) -> Laid:
    """Build `case` with its tensors in guarded memory of `buffer_type`; leafs are zero.

    With `weights`, the first leaf is in unguarded memory of that type.
    """
    built = build(case, base)
    roots = _roots(built.graph)
    stand_ins = [_stand_in(root, buffer_type) for root in roots]
    guarded = [_GUARD, *[t for stand_in in stand_ins for t in (stand_in, _GUARD)]]
    placed, buffers = allocate(guarded, buffer_type)
    buffers.fill(SENTINEL)
    homes = [t.place for t in placed[1::2]]
    if weights is not None:
        apart, _ = allocate(stand_ins[:1], weights, usage=tp.WEIGHTS)
        homes[0] = apart[0].place
    places = {root: home for root, home in zip(roots, homes, strict=True) if home is not None}
    bindings = tp.Bindings(places)
    for root in built.graph.leafs:
        transfer.fill(root, 0, bindings)
    return Laid(case, built, bindings, buffers, weights)


def _room(root: Tensor, memory: BufferType) -> int:
    """The bytes that a kernel may write for `root`, including scratch memory behind it."""
    return root.nbytes if root.is_leaf else memory.alloc_size(root)


def _stand_in(root: Tensor, memory: BufferType) -> Tensor:
    """A leaf of the size that `root` takes in `memory`; of bytes if that exceeds its own size."""
    room = _room(root, memory)
    return leaf("", (room,), tp.I8) if room > root.nbytes else leaf("", root.shape, root.dtype)


def _roots(graph: tp.Graph) -> list[Tensor]:
    return [t for t in (*graph.leafs, *graph.nodes) if t.view_of is None]
