"""`NativePlan`: nodes in a row with compiled kernels as one program, NumPy's steps in between."""

import ctypes
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device import (
    Aborted,
    Bindings,
    Buffer,
    GraphError,
    Group,
    Part,
    Place,
    Tensor,
)
from tensorplug.dtypes import DType
from tensorplug_cpu.operand import Operand, OwnLayoutBuffer
from tensorplug_cpu.plan import CPUPlan, Look, looking, prepare, resolve
from tensorplug_cpu.task import Tools
from tensorplug_cpu.threads import Step, blas_threads
from tensorplug_native.encode import Encoded, encode
from tensorplug_native.fusions import encode_group
from tensorplug_native.library import Outcome, library
from tensorplug_native.panels import InRows
from tensorplug_native.program import ADDRESSES, NODE, WORD, Ending, address
from tensorplug_native.rules import ACTIVATIONS, RULES

if TYPE_CHECKING:
    from tensorplug_native.backend import NativeBackend


SMALL = 1 << 16
"""Bytes of rows that one thread takes. Threads that were woken wait awake for a millisecond, which
slows whatever else the processor does: a GPU's token, whose embedding was read here, by a fifth."""


class Program:
    """Nodes that the library computes in one call."""

    def __init__(self, encoded: Iterable[Encoded]) -> None:
        self.encoded = list(encoded)
        self._records = np.frombuffer(bytearray().join(e.record for e in self.encoded), NODE)
        self._start = address(self._records)
        self._prepared: tuple[int, int] | None = None
        self._scratch = 0
        """Bytes that the kernels want."""
        nodes = [e.node for e in self.encoded]
        only_rows = all(node.op == "get_rows" for node in nodes)
        self._is_small = only_rows and sum(node.nbytes for node in nodes) <= SMALL

    @cached_property
    def _slots(self) -> Sequence[tuple[int, Tensor, int]]:
        """For each operand in memory of the graph: its word, its tensor, and the offset in it."""
        size = NODE.itemsize // WORD
        return [
            (index * size + word, argument.tensor, argument.offset)
            for index, encoded in enumerate(self.encoded)
            for word, argument in zip(ADDRESSES, encoded.draft.operands, strict=False)
            if argument is not None and argument.tensor is not None
        ]

    def move(self, places: "Places") -> None:
        """Take other addresses."""
        words = self._records.view(np.int64)
        where = [word for word, _, _ in self._slots]
        words[where] = [places.start(tensor) + offset for _, tensor, offset in self._slots]
        self._prepared = None

    def run(self, backend: "NativeBackend") -> Outcome:
        """Compute all nodes, or stop early and say why."""
        functions, level = library(), backend.level.index
        pool = backend.caller if self._is_small else backend.pool
        count = len(self.encoded)
        if self._prepared != (level, pool.count):
            size = functions.prepare(level, self._start, count, pool.count)
            if size < 0:
                node = self.encoded[-1 - size].node
                raise GraphError(f"{backend.name}: {node}: its record has no kernel")
            self._scratch = size
            self._prepared = (level, pool.count)
        outcome = Outcome()
        functions.run(
            *(level, pool.handle, self._start, count, address(backend.scratch(self._scratch))),
            *(backend.watch.poll, ctypes.byref(outcome)),
        )
        return outcome


Held = tuple[DType, type[Operand]]
"""What a tensor lies in memory as: its type, and the kind of its layout."""


class Places:
    """Where the tensors of a plan lie; what is known of one holds while its place is the same.

    Known are only tensors of the last bindings, so that a plan keeps no earlier graph alive.
    """

    def __init__(self) -> None:
        self._bindings = Bindings()
        self._open: set[Buffer] = set()
        self._starts: dict[Tensor, tuple[Place, int]] = {}
        self._held: dict[Tensor, tuple[Place, Held]] = {}
        self._last_starts = self._starts
        self._last_held = self._held

    def begin(self, bindings: Bindings) -> None:
        """Look at other bindings from now on."""
        self._bindings = bindings
        self._open.clear()
        self._last_starts, self._starts = self._starts, {}
        self._last_held, self._held = self._held, {}

    def end(self) -> None:
        """Forget the tensors that were not asked for since `begin`."""
        self._last_starts, self._last_held = self._starts, self._held

    def held(self, tensor: Tensor, look: Look) -> Held:
        """What `tensor` lies in memory as: `look` says it of tensors that are new or have moved."""
        place = self._bindings.where(tensor)
        known = self._last_held.get(tensor)
        if known is None or known[0] is not place:
            operand = look(tensor)
            known = place, (operand.dtype, type(operand))
        self._held[tensor] = known
        return known[1]

    def start(self, tensor: Tensor) -> int:
        """The address of `tensor`. Raises ShapeError, or Closed where its buffer is closed."""
        place = self._bindings.where(tensor)
        if place.buffer not in self._open:
            place.buffer.check_open()
            self._open.add(place.buffer)
        known = self._starts.get(tensor) or self._last_starts.get(tensor)
        if known is None or known[0] is not place:
            known = place, self._find(tensor, place)
        self._starts[tensor] = known
        return known[1]

    def _find(self, tensor: Tensor, place: Place) -> int:
        buffer, offset = place.buffer, place.offset
        if isinstance(buffer, OwnLayoutBuffer):
            return address(resolve(tensor, self._bindings).array)
        memory = buffer.host()
        if offset < 0 or offset + tensor.nbytes > memory.size:
            resolve(tensor, self._bindings)  # raises the error that says what is missing
        return address(memory) + offset


Unit = Tensor | Group


class Stretch:
    """Nodes in a row: a program, or steps of NumPy."""

    def __init__(self, nodes: Sequence[Tensor], program: Program | None = None) -> None:
        self.nodes = nodes
        self.program = program
        self.steps: list[Step] = []

    def bind(self, look: Look, tools: Tools) -> None:
        """Prepare the steps of NumPy."""
        rows = InRows(look)
        steps = [step for node in self.nodes for step in prepare(node, rows, tools)]
        self.steps = [*rows.refresh, *steps]


class NativePlan(CPUPlan):
    """Programs and steps are prepared once; a run makes one call for each of them."""

    backend: "NativeBackend"

    def __init__(self, backend: "NativeBackend", bound: Part) -> None:
        self._stretches: list[Stretch] = []
        self._places = Places()
        self._planned: tuple[Sequence[Unit], Sequence[Held]] | None = None
        super().__init__(backend, bound)

    def _rebind(self) -> None:
        bound, bindings = self.bound, self.bound.bindings
        look = looking(bindings)
        # Weights may lie expanded to f32, or in panels: they are not what they seem.
        leafs = (t for t in bound.leafs if t.size and not t.splits_blocks and bindings.has(t))
        self._places.begin(bindings)
        planned = bound.work, [self._places.held(t, look) for t in leafs]
        with np.errstate(all="ignore"):
            if planned == self._planned:
                self._move(look)
            else:
                self._stretches, self._planned = self._encode(bound.work, look), planned
        self._places.end()

    def _move(self, look: Look) -> None:
        """Keep all programs and take the new addresses."""
        tools = Tools(self.backend.team, self._scratch)
        for stretch in self._stretches:
            if stretch.program is None:
                stretch.bind(look, tools)
            else:
                stretch.program.move(self._places)
                _count_writes(stretch.nodes, tools)

    def _encode(self, units: Sequence[Unit], look: Look) -> list[Stretch]:
        tools = Tools(self.backend.team, self._scratch)
        tools.shared[ACTIVATIONS] = self.backend.activations
        work: list[tuple[Sequence[Tensor], Sequence[Encoded]]] = []
        stretches = []
        for item in units:
            nodes = item.nodes if isinstance(item, Group) else (item,)
            if isinstance(item, Group):
                work.append((nodes, encode_group(item, look, tools)))
            else:
                work.append((nodes, encode(item, RULES, look, tools)))
            _count_writes(nodes, tools)
        tools.writes.clear()
        for is_native, group in groupby(work, lambda pair: bool(pair[1])):
            pairs = list(group)
            stretch = Stretch([node for nodes, _ in pairs for node in nodes])
            if is_native:
                stretch.program = Program(e for _, records in pairs for e in records)
                _count_writes(stretch.nodes, tools)
            else:
                stretch.bind(look, tools)
            stretches.append(stretch)
        return stretches

    def _run(self) -> None:
        abort, watch = self.backend.abort_callback, self.backend.watch
        done = 0
        for stretch in self._stretches:
            if abort is not None and abort():
                raise self._aborted("before", stretch, done)
            if stretch.program is None:
                self._run_steps(stretch.steps)
            else:
                watch.begin(abort)
                outcome = stretch.program.run(self.backend)
                watch.end()
                if outcome.code == Ending.ABORTED:
                    raise self._aborted("after", stretch, done)
                if outcome.code == Ending.BAD_ROW:
                    encoded = stretch.program.encoded[outcome.node]
                    raise encoded.wrong_id(outcome.value, self.bound.bindings)
            done += len(stretch.nodes)

    def _run_steps(self, steps: Sequence[Step]) -> None:
        with np.errstate(all="ignore"), blas_threads(self.backend.threads):
            for step in steps:
                step()

    def _aborted(self, when: str, stretch: Stretch, done: int) -> Aborted:
        count = sum(len(p.nodes) for p in self._stretches)
        return Aborted(
            f"{self.backend.name}: stopped by its abort callback {when} {stretch.nodes[0]}, "
            f"after {done} of {count} nodes"
        )

    def _close(self) -> None:
        self._stretches, self._places = [], Places()
        super()._close()


class ReferencePlan(CPUPlan):
    """Node after node in NumPy; the nodes inside groups get memory of the plan's own."""

    _rooms: Sequence[Buffer] = ()

    def _look(self) -> Look:
        self._free_rooms()
        inner = [node for group in self.bound.groups for node in group.inner]
        kind = self.backend.device.buffer_type
        self._rooms = [kind.alloc(kind.alloc_size(node)) for node in inner]
        places = {n: Place(room, 0) for n, room in zip(inner, self._rooms, strict=True)}
        self._rows = InRows(looking(self.bound.bindings.with_places(places)))
        return self._rows

    def _run(self) -> None:
        for step in self._rows.refresh:
            step()
        super()._run()

    def _free_rooms(self) -> None:
        rooms, self._rooms = self._rooms, ()
        for room in rooms:
            room.close()

    def _close(self) -> None:
        super()._close()
        self._free_rooms()


def _count_writes(nodes: Iterable[Tensor], tools: Tools) -> None:
    """Note that what `nodes` write has changed, for what later nodes share."""
    for node in nodes:
        for root in node.written_roots:
            tools.writes[root] = tools.writes.get(root, 0) + 1
