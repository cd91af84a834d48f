"""`Backend`: an in-order stream of a device; `Plan`: a part ready to run; `Event`: a mark."""

import dis
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, final, runtime_checkable

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.device.lifetime import Resource, Turnstile
from tensorplug.device.part import Part
from tensorplug.device.placing import place
from tensorplug.device.rowids import wrong_id
from tensorplug.dtypes import DTypeLike
from tensorplug.errors import GraphError, Refusal, TensorplugError, Unsupported, blaming
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.ops.ids import row_ids

if TYPE_CHECKING:
    from tensorplug.device.device import Device, Rounding
    from tensorplug.device.marks import Mark
    from tensorplug.fusion.formulas import Group


End = Place | memoryview
"""Memory of a buffer, or of the host."""


class Watch(Protocol):
    """Hears what streams are asked for, in the order in which they are asked."""

    def runs(self, stream: "Backend", bound: Part) -> None:
        """`stream` is about to queue a plan."""
        ...

    def moves(self, by: "Backend | None", source: End, target: End | None, size: int) -> None:
        """A stream copies `size` bytes in order with its work, or the host does so now.

        Without a `target` the host just looks at them.
        """
        ...

    def ordered(self, first: "Backend", then: "Backend") -> None:
        """Work queued on `then` from now on starts after all work queued on `first` so far."""
        ...

    def synchronized(self, stream: "Backend") -> None:
        """The host has waited for `stream`."""
        ...

    def marked(self, mark: "Mark") -> None:
        """All work queued on the stream of `mark` so far is what it stands for."""
        ...

    def reached(self, mark: "Mark", then: "Backend | None") -> None:
        """Work queued on `then` from now on starts after `mark`; None: the host waited for it."""
        ...


class Event(ABC):
    """A mark in a stream. One that was never recorded counts as reached."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the mark is reached."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the mark is reached."""


class Plan(Resource, ABC):
    """A part with everything resolved that can be: `run()` queues it on its backend."""

    def __init__(self, backend: "Backend", bound: Part) -> None:
        super().__init__(backend)
        self.backend = backend
        self.bound = bound
        self._turn = Turnstile(f"plan on {backend.name}")

    @final
    def run(self) -> None:
        """Queue the whole part; returns before it is done where the backend is asynchronous."""
        with self._turn, self.backend._turn, blaming(self.backend.device):
            self.check_open()
            for watch in self.backend.watches:
                watch.runs(self.backend, self.bound)
            try:
                self._run()
            except TensorplugError as error:
                error.node = error.node or self._only_work()
                raise
            except Exception as error:
                wrong = self._wrong_id()
                if wrong is None:
                    raise
                raise wrong from error

    def _wrong_id(self) -> GraphError | None:
        """The error for an id that names no row, where that may be why a kernel failed.

        Ids that the part computes may have been overwritten since.
        """
        nodes = (n for n in self.bound.nodes if not n.is_view)
        given = (n for n in nodes if all(held.ids.root.is_leaf for held in row_ids(n)))
        return wrong_id(given, self.bound.bindings)

    @final
    def rebind(self, bound: Part) -> None:
        """Take other places, or another part with the same structural key. Raises GraphError.

        Saves the check of what the device supports, and what a backend keeps: compiled programs,
        kernel objects, captured graphs. A backend that keeps nothing takes as long as for a new
        plan.
        """
        with self._turn, blaming(self.backend.device):
            self.check_open()
            if not bound.has_structure_of(self.bound):
                raise GraphError(f"{self!r}: cannot run {bound!r} of another structure; plan it")
            self.bound = bound
            self._rebind()

    @abstractmethod
    def _run(self) -> None:
        """Queue the work. Leafs may hold other values at each run, weights and ids included.

        An error of ours (`TensorplugError`) should carry `error.node`, the text of the node at
        work, which users read in reports. `NodePlan` sets it; a plan of a single node needs not.
        """

    @abstractmethod
    def _rebind(self) -> None:
        """`self.bound` has changed: resolve addresses again."""

    def _only_work(self) -> str:
        """The text of the only node or group to compute; empty where there are several."""
        work = self.bound.work
        return str(work[0]) if len(work) == 1 else ""

    def _finish(self) -> None:
        self.backend.drain()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.bound.nodes)} nodes"
        return f"<{type(self).__name__} {self.backend.name}, {state}>"


class NodePlan(Plan):
    """The plan of a backend that brings none of its own: a loop over nodes and groups."""

    def _run(self) -> None:
        bindings = self.bound.bindings
        work: Tensor | Group | None = None
        try:
            for work in self._order():
                if isinstance(work, Tensor):
                    self.backend._compute(work, bindings)
                else:
                    self.backend._compute_group(work, bindings)
        except TensorplugError as error:
            error.node = error.node or str(work)
            raise
        except Exception as error:
            nodes = (work,) if isinstance(work, Tensor) else ()
            wrong = wrong_id(nodes, bindings)
            if wrong is None:
                raise
            raise wrong from error

    def _order(self) -> "Iterable[Tensor | Group]":
        """The nodes and groups as they are queued."""
        return self.bound.work

    def _rebind(self) -> None:
        """Addresses are looked up at each run."""


class Backend(Resource, ABC):
    """One in-order stream of a device. Belongs to one thread at a time."""

    plan_class: ClassVar[type[Plan]] = NodePlan
    """Makes plans of parts that the device supports; called with the stream and the part.

    Set it, or override `_plan` where a plan takes more arguments. With a plan of one's own
    `_compute` is called by nobody but that plan.
    """
    prefers_f16: bool = False
    """True where f16 is read as fast as f32, and rounding to it is no more than the stream rounds.

    Applications ask it for tensors of their own, such as the cache of a language model.
    """
    watches: "tuple[Watch, ...]" = ()
    """Who hears what this stream is asked for."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Every option of the device with the value that `Device.open` was given, or its default."""
    survives_fork: ClassVar[bool] = False
    """Whether streams, plans and memory of the device work in a forked child of their process.

    A driver's context does not, and calls to it may hang for ever: so core raises DeviceError in
    the child, and lets go of such objects without a call. Set it to True where all is the process's
    own memory, and renew locks and pools of threads with `forks.in_child`.
    """

    def __init__(self, device: "Device") -> None:
        self.device = device
        self._turn = Turnstile(f"backend {device.name}")
        self._late_error: TensorplugError | None = None
        self._moments = itertools.count(1)
        self._waited = 0
        # Last: from here on other threads may wait for it, when they free memory of its device.
        super().__init__(device)

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.device.name

    @property
    def buffer_type(self) -> BufferType:
        """The kind of memory this backend computes in unless told otherwise."""
        return self.device.buffer_type

    def rounding(self, node: Tensor) -> "Rounding":
        """What the product `node` rounds its operands to on this stream: by default, the device's.

        Streams whose options decide it override this. See `Rounding`.
        """
        return self.device.rounding(node)

    @final
    def plan(self, bound: Part) -> Plan:
        """Make `bound` ready to run. Raises Unsupported for what the device cannot do."""
        self.check_open()
        with blaming(self.device):
            self._check_support(bound)
            return self._plan(bound)

    @final
    def compute(self, bound: Part) -> None:
        """Run a part once and wait for it."""
        with self.plan(bound) as plan:
            plan.run()
            self.synchronize()

    @final
    def synchronize(self) -> None:
        """Wait until all queued work is done; errors of that work are raised here."""
        self.check_open()
        with blaming(self.device):
            if self._late_error is not None:
                error, self._late_error = self._late_error, None
                raise error
            begun = self.moment()
            try:
                self._synchronize()
            finally:
                for watch in self.watches:
                    watch.synchronized(self)
        # Of two threads that wait at once the later may put a smaller number here: a mark then
        # waits once more.
        self._waited = max(self._waited, begun)

    def moment(self) -> int:
        """A number for now, which `waited_since` takes."""
        return next(self._moments)

    def waited_since(self, moment: int) -> bool:
        """Whether somebody has waited for all work that was queued before `moment`."""
        return self._waited > moment

    @property
    def has_failed(self) -> bool:
        """Whether it is known that the next `synchronize()` raises."""
        return self._late_error is not None or self._has_failed()

    @final
    def drain(self) -> None:
        """Wait until all queued work is done; its error waits for the next `synchronize()`."""
        if self.lost_by_fork:
            return  # the parent waits for its work
        try:
            self._synchronize()
        except TensorplugError as error:
            self._late_error = self._late_error or error

    @final
    def place(
        self,
        name: str,
        data: Array | Sequence[Any],
        *,
        usage: BufferUsage = BufferUsage.ANY,
        buffer_type: BufferType | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Return a persistent tensor with a copy of `data` in a buffer of its own."""
        return place(name, data, buffer_type or self.buffer_type, usage=usage, dtype=dtype)

    @abstractmethod
    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        """Queue one node: not a view, not empty; `bindings.where(tensor)` says what lies where."""

    def _compute_group(self, group: "Group", bindings: Bindings) -> None:
        """Queue all nodes of a group; those in `group.inner` have no memory.

        Called only for groups that `Device.refuses_group` does not refuse.
        """
        raise Unsupported(f"{self.name}: takes {group} and has no _compute_group() for it")

    def _plan(self, bound: Part) -> Plan:
        """Make the plan of a part; the device supports every node and group of it."""
        return self.plan_class(self, bound)

    def _synchronize(self) -> None:
        """Wait for queued work; nothing to do where all work is done at once.

        Any thread may call this: a buffer waits for the streams of its device before it is freed.
        """

    def _has_failed(self) -> bool:
        """Whether queued work has failed and `_synchronize` will say so; no waiting."""
        return False

    def _finish(self) -> None:
        self.drain()

    def _check_support(self, bound: Part) -> None:
        bindings = bound.bindings
        types = {t: bindings.where(t).buffer.type for t in bound.leafs if bindings.has(t)}
        grouped = {node for group in bound.groups for node in group.nodes}
        for group in bound.groups:
            self._require(group, self.device.refuses_group(group, types))
        for node in bound.nodes:
            if not node.is_view and node not in grouped:
                self._require(node, self.device.refuses(node, types))

    def _require(self, what: "Tensor | Group", refusal: Refusal | None) -> None:
        if refusal is not None:
            raise Unsupported(f"{what}: cannot run here: {refusal.reason}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SETTABLE and name not in members(type(self)):
            kind = type(self).__name__
            raise Unsupported(
                f"{self.device.name}: {name} cannot be set: {kind} has no "
                f"{_SETTABLE[name].__name__}; ask isinstance() first (a class that has it "
                f"declares {name})"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', closed' if self.closed else ''}>"


@cache
def members(kind: type) -> frozenset[str]:
    """Names that a class defines, annotates, or assigns in `__init__`."""
    found: set[str] = set()
    for base in kind.__mro__:
        found |= {*vars(base), *inspect.get_annotations(base)}
        start = vars(base).get("__init__")
        if inspect.isfunction(start):
            steps = dis.get_instructions(start)
            found |= {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}
    return frozenset(found)


@runtime_checkable
class SupportsEvents(Protocol):
    """A stream that can be marked and can wait for another stream's mark."""

    def record(self) -> Event:
        """Mark all work queued so far."""
        ...

    def accepts(self, event: Event) -> bool:
        """Whether `wait` can order this stream after `event`."""
        ...

    def wait(self, event: Event) -> None:
        """Start work queued from now on after `event`."""
        ...


@runtime_checkable
class SupportsAsyncTransfer(Protocol):
    """A stream that copies between host and device in order with its other work.

    The methods are for core: they take bytes of a buffer, and know no tensors. Programs call
    `tensorplug.transfer.write_async` and `read_async`. Host memory stays alive and unchanged until
    the next `synchronize()`, or until an event that was recorded behind the transfer is reached.
    """

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes to `offset` of `buffer`."""
        ...

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy from `offset` of `buffer` to host bytes."""
        ...


@runtime_checkable
class SupportsAsyncCopy(Protocol):
    """A stream that takes copies from another stream's memory.

    For core; programs call `tensorplug.transfer.copy_async`.
    """

    def copy_async(self, source: Backend, start: Place, target: Place, size: int) -> bool:
        """Queue a copy that starts after all work queued on `source`; False if it cannot be done.

        Work queued on this stream later starts after the copy. Work queued on `source` later may
        start before it: who writes the copied memory again orders that with `order_after`.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """What a stream did from `start` to `end`, nanoseconds of `time.perf_counter_ns`."""

    name: str
    start: int
    end: int


@runtime_checkable
class SupportsProfiling(Protocol):
    """A stream that can time its own work."""

    profile: bool
    """Whether work queued from now on is timed."""

    def take_spans(self) -> Sequence[DeviceSpan]:
        """What was timed and is done, in order, each once."""
        ...


@runtime_checkable
class SupportsOptimize(Protocol):
    """A backend that may put the nodes of its part of a graph in another order."""

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the same nodes in an order that keeps every dependency."""
        ...


@runtime_checkable
class SupportsConcurrency(Protocol):
    """A stream that runs work side by side and puts barriers where that must not be.

    The scheduler puts its work into stages, `Part.stages`, and gives what runs side by side memory
    apart. `tensorplug.planning.stages.placed` says where the barriers must stand.
    """

    ahead: int
    """How many pieces of work to look ahead for some that may run now; 0 keeps their order."""


@runtime_checkable
class SupportsThreads(Protocol):
    """A backend whose work is done by a number of host threads.

    The attribute is the ability: programs set it on an open stream. An option `threads` of the
    device is its value at `open`, for device strings such as `acme?threads=2`; it has no effect
    on the attribute but through `Device._open`.
    """

    threads: int
    """At least 1. A new number holds for work that is queued after it was set."""


@runtime_checkable
class SupportsAbort(Protocol):
    """A backend that asks between nodes whether to go on."""

    abort_callback: Callable[[], bool] | None
    """Returns True to stop; the run then raises Aborted."""


@runtime_checkable
class SupportsReference(Protocol):
    """A backend that can use its plain kernels in place of its fast ones."""

    use_reference: bool


@runtime_checkable
class SupportsThreadPool(Protocol):
    """A backend that can share a pool of threads with others."""

    def set_thread_pool(self, pool: object | None) -> None:
        """Use `pool`, made by the same distribution, or one's own again."""
        ...


@runtime_checkable
class SupportsNotes(Protocol):
    """A plan that has something to say of its nodes, for `Schedule.explain`."""

    def notes(self) -> Mapping[Tensor, str]:
        """A short text for each node of which there is something to say."""
        ...


@runtime_checkable
class SupportsCollectives(Protocol):
    """A device that sums tensors over several of its kind by itself."""

    def all_reduce(
        self, backends: Sequence[Backend], places: Sequence[Place], node: Tensor
    ) -> bool:
        """Sum the copies of `node` at `places` into each; False if this cannot be done here."""
        ...


_SETTABLE: Mapping[str, type] = {
    name: ability
    for ability in (
        SupportsThreads,
        SupportsAbort,
        SupportsReference,
        SupportsProfiling,
        SupportsConcurrency,
    )
    for name in inspect.get_annotations(ability)
}
"""Attributes of streams with an ability, which other streams would take and never look at."""


def order_after(first: Backend, then: Backend) -> None:
    """Start work queued on `then` from now on after all work queued on `first` so far."""
    if first is then:
        return
    if isinstance(first, SupportsEvents) and isinstance(then, SupportsEvents):
        with blaming(first.device):
            event = first.record()
        if then.accepts(event):
            with blaming(then.device):
                then.wait(event)
            for watch in then.watches:
                watch.ordered(first, then)
            return
    first.synchronize()


def tell_of_move(
    whom: Backend, by: Backend | None, source: End, target: End | None, size: int
) -> None:
    """Tell who watches the stream `whom` of a copy, done by a stream or now by the host."""
    for watch in whom.watches:
        watch.moves(by, source, target, size)
