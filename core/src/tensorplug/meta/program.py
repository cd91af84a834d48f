"""`MetaProgram`: the steps of one graph on several devices, segments of nodes and exchanges."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorplug.graph.tensor import Tensor
from tensorplug.meta.state import Partition
from tensorplug.planning.program import Step

Locals = tuple[Tensor, ...]
"""One tensor for each device: the device's part of a tensor of the graph."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the devices have of a tensor. In the state SUMMANDS, only `holders` have a summand."""

    state: Partition
    locals: Locals
    holders: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Segment:
    """The nodes that each device computes, in order, without exchange with other devices."""

    nodes: tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True, slots=True)
class Move(Step):
    """A copy of `size` bytes: tensor `start` of device `source` to tensor `end` of `stream`.

    Offsets are in bytes from the start of the tensors. `source` and `stream` may be equal.
    """

    source: int
    start: Tensor
    end: Tensor
    size: int
    source_offset: int = 0
    target_offset: int = 0

    @property
    def words(self) -> str:
        return "copies"

    @property
    def moved(self) -> Tensor:
        return self.start

    @property
    def origin(self) -> int:
        return self.source

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.start,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        return (self.end,)

    def title(self, names: Sequence[str]) -> str:
        return (
            f"move {self.start.label} from {names[self.source]} to {names[self.stream]}: "
            f"{self.size} B"
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """Copies between devices; none depends on another."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Redeal(Step):
    """A change of state through the host: gather `source`, scatter `target`; `of` is the whole."""

    of: Tensor
    source: Held
    target: Held

    @property
    def words(self) -> str:
        return "gathers and scatters"

    @property
    def moved(self) -> Tensor:
        return self.of

    @property
    def by_host(self) -> bool:
        return True

    def title(self, names: Sequence[str]) -> str:
        return f"gather {self.of.label}, {self.source.state}, scatter {self.target.state}"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce: each device's summand is replaced by the sum of all.

    It runs as a collective of the devices if they have one, else as `steps`.
    """

    of: Tensor
    locals: Locals
    everyone: bool
    """True if every device has a summand."""
    steps: "tuple[Segment | Exchange, ...]"


MetaStep = Segment | Exchange | Redeal | AllReduce


@dataclass(frozen=True, slots=True)
class Home:
    """Existing memory of a device's tensor: that of `of`, or memory of zeros if `of` is None."""

    of: Tensor | None


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one tensor in words, why, and the bytes moved for it."""

    tensor: str
    op: str
    shape: str
    state: str
    why: str
    moved: int


@dataclass(slots=True)
class MetaProgram:
    """Steps in order; `homes` are the tensors of each device that need no new memory."""

    devices: int
    steps: list[MetaStep] = field(default_factory=list)
    homes: list[dict[Tensor, Home]] = field(default_factory=list)
    rows: dict[Tensor, Row] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """Bytes that all devices receive from other devices in one run."""
        return sum(received(step) for step in self.steps)


def received(step: MetaStep) -> int:
    """Bytes that all devices receive from other devices in `step`."""
    if isinstance(step, Exchange):
        return sum(m.size for m in step.moves if m.source != m.stream)
    if isinstance(step, AllReduce):
        return sum(received(s) for s in step.steps)
    if isinstance(step, Redeal):
        return _redealt(step)
    return 0


def _redealt(step: Redeal) -> int:
    """Bytes received: for each device, its new part minus the part that it already had."""
    mine = [t.size // t.dtype.block * t.dtype.size for t in step.source.locals]
    will = [t.size // t.dtype.block * t.dtype.size for t in step.target.locals]
    if not step.source.state.is_cut:
        return 0
    return sum(max(b - a, 0) for a, b in zip(mine, will, strict=True))


def flat(steps: Sequence[MetaStep]) -> list[MetaStep]:
    """All steps, with an AllReduce replaced by its own steps; used to plan memory."""
    found: list[MetaStep] = []
    for step in steps:
        found.extend(step.steps if isinstance(step, AllReduce) else [step])
    return found
