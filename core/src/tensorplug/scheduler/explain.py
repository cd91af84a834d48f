"""`Explanation`: what runs where, and why, for people and for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorplug.buffer import BufferType, human
from tensorplug.scheduler.assign import Field
from tensorplug.tensor import Tensor

if TYPE_CHECKING:
    from tensorplug.scheduler.schedule import Layout


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: its split, its device, the cause, and who refused it why.

    `fused` is the pattern and the last node of the group in which it is computed, if any.
    """

    split: int
    node: str
    op: str
    result: str
    device: str
    cause: str
    refusals: dict[str, str]
    fused: str


@dataclass(frozen=True, slots=True)
class UnfusedRow:
    """Nodes that follow a pattern and that their device does not compute as one, and why."""

    split: int
    pattern: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy between devices at the start of a split."""

    split: int
    tensor: str
    origin: str
    target: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """A schedule in words. `memory` is bytes of compute buffers by buffer type."""

    nodes: tuple[NodeRow, ...]
    copies: tuple[CopyRow, ...]
    splits: tuple[str, ...]
    memory: dict[str, int]
    unfused: tuple[UnfusedRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{_count(len(self.nodes), 'node')} in {_count(len(self.splits), 'split')}, "
            f"{human(sum(c.bytes for c in self.copies))} copied per run",
            "compute memory: "
            + ", ".join(f"{name} {human(size)}" for name, size in self.memory.items()),
        ]
        for i, device in enumerate(self.splits):
            lines += ["", f"split {i} on {device}"]
            lines += [
                f"  copy {c.tensor} from {c.origin}: {human(c.bytes)}"
                for c in self.copies
                if c.split == i
            ]
            lines += _table([row for row in self.nodes if row.split == i])
        return "\n".join(lines)


def explain(layout: "Layout", field: Field, pools: Sequence[BufferType]) -> Explanation:
    """Put a layout into words."""
    names = [backend.name for backend in field.backends]
    fused = {
        node: f"{group.pattern.name} ending in {_label(group.last)}"
        for split in layout.splits
        for group in split.groups
        for node in group.nodes
    }
    nodes = tuple(
        NodeRow(
            split.index,
            _label(node),
            node.op,
            f"{node.dtype.name}{list(node.shape)}",
            names[split.backend],
            layout.where[node].cause,
            field.refusals(node),
            fused.get(node, ""),
        )
        for split in layout.splits
        for node in split.nodes
    )
    copies = tuple(
        CopyRow(
            split.index,
            _label(copy.source),
            names[copy.origin],
            names[split.backend],
            copy.source.nbytes,
        )
        for split in layout.splits
        for copy in split.copies
    )
    memory = {
        pool.name: layout.memory.pool_size(i)
        for i, pool in enumerate(pools)
        if layout.memory.pool_size(i)
    }
    unfused = tuple(
        UnfusedRow(split.index, group.pattern.name, tuple(map(_label, group.nodes)), reason)
        for split in layout.splits
        for group, reason in split.refused
    )
    devices = tuple(names[s.backend] for s in layout.splits)
    return Explanation(nodes, copies, devices, memory, unfused)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _label(tensor: Tensor) -> str:
    return tensor.name or f"#{tensor.serial}"


def _table(rows: Sequence[NodeRow]) -> list[str]:
    cells = [(row.node, row.op, row.result, row.cause) for row in rows]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(3)]
    lines = []
    for row, cell in zip(rows, cells, strict=True):
        padded = "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=False))
        refused = "".join(f"; refused by {why}" for why in row.refusals.values())
        fused = f"; fused into {row.fused}" if row.fused else ""
        lines.append(f"  {padded}  {row.cause}{fused}{refused}")
    return lines
