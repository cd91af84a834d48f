"""`MetaPlan`: a program with memory, and one plan for each segment and device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorplug.device.buffer import BufferType
from tensorplug.device.part import Part
from tensorplug.device.plan import Plan
from tensorplug.errors import Unsupported
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.meta.buffer import MetaBuffer
from tensorplug.meta.build import build
from tensorplug.meta.layout import Groups, fused, lay_out
from tensorplug.meta.program import Home, MetaProgram
from tensorplug.meta.state import WHOLE, Partition
from tensorplug.meta.steps import plans_of, program_of
from tensorplug.planning.memory import MemoryMap, Slot
from tensorplug.planning.program import Program
from tensorplug.running.batch import Batch
from tensorplug.running.run import RunContext, run_alone
from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug.meta.device import MetaBackend, MetaDevice


class MetaPlan(Plan):
    """The plan of a meta device: runs segments on all devices, and exchanges data between them."""

    backend: "MetaBackend"

    def __init__(self, backend: "MetaBackend", bound: Part) -> None:
        super().__init__(backend, bound)
        self.program = MetaProgram(len(backend.streams))
        self.steps: Program = ()
        self._batch = Batch()
        self._memory: list[MemoryMap] = []
        self._groups: list[Groups] = []
        self._generations = (-1, -1, -1)
        self._rebind()

    def notes(self) -> Mapping[Tensor, str]:
        """The state of every node, why, and the bytes moved for it."""
        return {
            node: f"{row.state}: {row.why}" + (f", {human(row.moved)} moved" if row.moved else "")
            for node, row in self.program.rows.items()
        }

    # --- planning ----------------------------------------------------------------------------

    def _rebind(self) -> None:
        self.program = _program(self.bound, self.backend.device)
        self._groups, self._memory = _laid_out(self.program, self.backend.device)
        self._bind()

    def _bind(self) -> None:
        """Give every tensor a place, and make the plans of the segments."""
        self._drop()
        backend = self.backend
        backend.fleet.arena.grow([memory.sizes[0] for memory in self._memory])
        backend.reserve_zeros(_zeros(self.program))
        places = [self._places_of(d) for d in range(len(backend.streams))]
        self.steps = program_of(self.program)
        self._batch.bindings = Bindings({t: p for each in places for t, p in each.items()})
        of_device = [Bindings(each) for each in places]
        for segment, d in plans_of(self.program):
            groups = self._groups[d].get(segment, ())
            part = Part(segment.nodes[d], of_device[d], groups=groups)
            self._batch.locals.append(of_device[d])
            self._batch.plans.append(backend.streams[d].plan(part))
        self._generations = self._now()

    def _now(self) -> tuple[int, int, int]:
        backend = self.backend
        return backend.device.generation, backend.fleet.arena.generation, backend.zeros.generation

    def _places_of(self, device: int) -> dict[Tensor, Place]:
        arena = self.backend.fleet.arena
        slots = self._memory[device].slots
        places = {t: arena.place(replace(slot, pool=device)) for t, slot in slots.items()}
        for tensor, home in self.program.homes[device].items():
            places[tensor] = self._place_of(home, device)
        for tensor, place in places.items():
            place.buffer.init_tensor(tensor, place.offset)
        return places

    def _place_of(self, home: Home, device: int) -> Place:
        if home.of is None:
            return self.backend.zeros.place(Slot(device, 0, 0, 0))
        place = self.bound.bindings.where(home.of)
        assert isinstance(place.buffer, MetaBuffer)
        region = place.buffer.region_of(home.of, place.offset)
        if region is None:
            return Place(place.buffer.copies[device], place.offset)
        found = region.slices[device].place
        assert found is not None
        return found

    # --- running -----------------------------------------------------------------------------

    def _run(self) -> None:
        if self._generations[0] != self.backend.device.generation:
            self._rebind()
        elif self._generations != self._now():
            self._bind()
        run_alone(self.steps, self.backend.fleet, RunContext(self._batch))
        self.backend.moved += self.program.moved

    def _drop(self) -> None:
        batch, self._batch = self._batch, Batch()
        for plan in batch.plans:
            plan.close()

    def _close(self) -> None:
        self._drop()


def plan_sizes(device: "MetaDevice", bound: Iterable[Part]) -> Mapping[BufferType, int]:
    """Bytes on each device of plans of these parts: memory and zeros that they share."""
    kinds, found = device.buffer_type.kinds, Counter[BufferType]()
    largest, zeros = [0] * len(kinds), [0] * len(kinds)
    for part in bound:
        program = _program(part, device)
        _, memory = _laid_out(program, device)
        largest = [max(n, sum(m.sizes[0])) for n, m in zip(largest, memory, strict=True)]
        zeros = [max(pair) for pair in zip(zeros, _zeros(program) or zeros, strict=True)]
    for kind, *sizes in zip(kinds, largest, zeros, strict=True):
        found[kind] += sum(sizes)
    return found


def _program(bound: Part, device: "MetaDevice") -> MetaProgram:
    bindings = bound.bindings
    return build(bound.nodes, device.devices, lambda root: home_of(root, bindings), bindings.names)


def _laid_out(program: MetaProgram, device: "MetaDevice") -> tuple[list[Groups], list[MemoryMap]]:
    """What each device fuses, and its memory for tensors without a home."""
    groups = [fused(program, d, each) for d, each in enumerate(device.devices)]
    kinds = enumerate(device.buffer_type.kinds)
    return groups, [lay_out(program, d, kind, groups[d]) for d, kind in kinds]


def _zeros(program: MetaProgram) -> list[int]:
    """Bytes of zeros that each device needs; none where no device needs some."""
    sizes = [[t.nbytes for t, home in homes.items() if home.of is None] for homes in program.homes]
    return [max([64, *wanted]) for wanted in sizes] if any(sizes) else []


def home_of(root: Tensor, bindings: Bindings) -> Partition | None:
    """The state of a root in its memory; None for a node without memory.

    Raises Unsupported for memory that does not belong to a meta device.
    """
    if not bindings.has(root) and not root.is_leaf:
        return None
    place = bindings.where(root)
    if not isinstance(place.buffer, MetaBuffer):
        raise Unsupported(
            f"{root}: lies in {place.buffer.type.name}, which is not the memory of a meta device"
        )
    region = place.buffer.region_of(root, place.offset) if root.nbytes else None
    return WHOLE if region is None else region.state
