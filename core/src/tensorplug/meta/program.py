"""What several devices do for one graph: segments that each runs alone, and exchanges between."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorplug.graph.tensor import Tensor
from tensorplug.meta.state import SplitState

Locals = tuple[Tensor, ...]
"""One tensor for each device: what it has of a tensor of the graph."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the devices have of a tensor. Of summands, only the `holders` have one."""

    state: SplitState
    locals: Locals
    holders: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that every device computes by itself, in order."""

    nodes: tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """`size` bytes of a tensor of one device, copied into a tensor of another or the same."""

    source: int
    start: Tensor
    target: int
    end: Tensor
    size: int
    source_offset: int = 0
    target_offset: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Copies between devices that do not depend on each other."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Redeal:
    """A tensor dealt out in another way, through the host. `of` is the whole."""

    of: Tensor
    source: Held
    target: Held


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The summands of each device become their sum: by `steps`, or by an ability of the devices."""

    of: Tensor
    locals: Locals
    everyone: bool
    """Whether each device has a summand."""
    steps: "tuple[Segment | Exchange, ...]"


Step = Segment | Exchange | Redeal | AllReduce


@dataclass(frozen=True, slots=True)
class Home:
    """Memory that a tensor of a device has already: where `of` lies, or memory that is all zero."""

    of: Tensor | None


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one tensor, for people: why, and what was moved for it in bytes."""

    tensor: str
    op: str
    shape: str
    state: str
    why: str
    moved: int


@dataclass(slots=True)
class Program:
    """Steps in order, and where the tensors lie that need no memory of their own."""

    devices: int
    steps: list[Step] = field(default_factory=list)
    homes: list[dict[Tensor, Home]] = field(default_factory=list)
    rows: dict[Tensor, Row] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """Bytes that devices receive from others in one run."""
        return sum(received(step) for step in self.steps)


def received(step: Step) -> int:
    """Bytes that devices receive from others."""
    if isinstance(step, Exchange):
        return sum(m.size for m in step.moves if m.source != m.target)
    if isinstance(step, AllReduce):
        return sum(received(s) for s in step.steps)
    if isinstance(step, Redeal):
        return _redealt(step)
    return 0


def _redealt(step: Redeal) -> int:
    """Each device gets what it will have and has not: all but its own slice."""
    mine = [t.size // t.dtype.block * t.dtype.size for t in step.source.locals]
    will = [t.size // t.dtype.block * t.dtype.size for t in step.target.locals]
    if not step.source.state.is_cut:
        return 0
    return sum(max(b - a, 0) for a, b in zip(mine, will, strict=True))


def flat(steps: Sequence[Step]) -> list[Step]:
    """All steps with those of reductions in their place, for who lays out memory."""
    found: list[Step] = []
    for step in steps:
        found.extend(step.steps if isinstance(step, AllReduce) else [step])
    return found
