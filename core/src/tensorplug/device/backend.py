"""`Backend`: an in-order stream of a device."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard, final

from tensorplug.device.abilities import (
    SETTABLE,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsEvents,
    members,
)
from tensorplug.device.buffer import BufferType, BufferUsage
from tensorplug.device.lifetime import Resource, Turnstile
from tensorplug.device.part import Part
from tensorplug.device.placing import place
from tensorplug.device.plan import NodePlan, Plan
from tensorplug.dtypes import DTypeLike
from tensorplug.errors import Refusal, TensorplugError, Unsupported, blaming
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor

if TYPE_CHECKING:
    from tensorplug.device.device import Device, Rounding
    from tensorplug.device.marks import Mark
    from tensorplug.fusion.formulas import Group


End = Place | memoryview
"""One end of a copy: a place in a buffer, or host memory."""


class Watch(Protocol):
    """A listener that is told of every request to a stream, in the order of the requests."""

    def runs(self, stream: "Backend", bound: Part) -> None:
        """`stream` is about to queue a plan."""
        ...

    def moves(self, by: "Backend | None", source: End, target: End | None, size: int) -> None:
        """`size` bytes are copied: by the stream `by` in order with its work, or now by the host.

        Without a `target` the host only reads them.
        """
        ...

    def ordered(self, first: "Backend", then: "Backend") -> None:
        """Work queued on `then` from now on starts after all work queued on `first` so far."""
        ...

    def synchronized(self, stream: "Backend") -> None:
        """The host has waited for all work of `stream`."""
        ...

    def marked(self, mark: "Mark") -> None:
        """`mark` was made: it stands for all work queued on its stream so far."""
        ...

    def reached(self, mark: "Mark", then: "Backend | None") -> None:
        """Work queued on `then` from now on starts after `mark`; None: the host waited for it."""
        ...


class Backend(Resource, ABC):
    """One in-order stream of a device. Only one thread may use it at a time.

    >>> with tp.open("cpu") as stream:
    ...     stream.device.name
    'cpu:0'
    """

    plan_class: ClassVar[type[Plan]] = NodePlan
    """The class of plans; called with the stream and a part that the device supports.

    Set it, or override `_plan` if the class takes more arguments. Only NodePlan calls `_compute`;
    another class of plans may use `_compute` or not.
    """
    prefers_f16: bool = False
    """True if f16 is read as fast as f32 and the stream rounds to f16 or less anyway.

    Applications use this to choose types, such as that of the KV cache of a language model.
    """
    holds_sources: bool = True
    """False if later work may overwrite the source of a queued copy at once.

    Then `write_async` has taken the bytes when it returns, and what `copy_async` reads is ordered
    with the work of the source's stream.
    """
    watches: "tuple[Watch, ...]" = ()
    """Listeners that are told of every request to this stream."""
    options: Mapping[str, Any] = MappingProxyType({})
    """The value of every option of the device: as given to `Device.open`, or the default."""
    survives_fork: ClassVar[bool] = False
    """True if streams, plans and memory of the device work in a forked child of their process.

    The context of a driver does not work there, and calls to it may hang forever. So by default
    core raises DeviceError in the child, and drops the objects without calling the driver. Set this
    to True if the backend uses only memory of the process; renew locks and thread pools with
    `forks.in_child`.
    """

    def __init__(self, device: "Device") -> None:
        self.device = device
        self._turn = Turnstile(f"backend {device.name}")
        self._late_error: TensorplugError | None = None
        self._moments = itertools.count(1)
        self._waited = 0
        # Last, because from here on other threads that free memory of the device wait for this.
        super().__init__(device)

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.device.name

    @property
    def buffer_type(self) -> BufferType:
        """The buffer type that this backend computes in by default."""
        return self.device.buffer_type

    def rounding(self, node: Tensor) -> "Rounding":
        """The rounding of operands of the product `node` on this stream; by default the device's.

        Override it if options of the stream change the rounding. See `Rounding`.
        """
        return self.device.rounding(node)

    @final
    def plan(self, bound: Part) -> Plan:
        """Prepare `bound` for running. Raises Unsupported if the device refuses a node or group."""
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
        """Wait until all queued work is done. Errors of this work are raised here, once."""
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
        # If two threads wait at the same time, the later one may store a smaller number here. Then
        # a mark only waits once more than needed.
        self._waited = max(self._waited, begun)

    def moment(self) -> int:
        """A number that stands for the present moment, for `waited_since`."""
        return next(self._moments)

    def waited_since(self, moment: int) -> bool:
        """True if the host has waited for all work that was queued before `moment`."""
        return self._waited > moment

    @property
    def has_failed(self) -> bool:
        """True if it is already known that the next `synchronize()` raises."""
        return self._late_error is not None or self._has_failed()

    @final
    def drain(self) -> None:
        """Wait until all queued work is done. The next `synchronize()` raises its error."""
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
        self.check_open()
        return place(name, data, buffer_type or self.buffer_type, usage=usage, dtype=dtype)

    @abstractmethod
    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        """Queue one node, neither a view nor empty; `bindings.where(tensor)` gives places."""

    def _compute_group(self, group: "Group", bindings: Bindings) -> None:
        """Queue all nodes of a group. Nodes in `group.inner` have no memory.

        Called only for groups that `Device.refuses_group` accepts.
        """
        raise Unsupported(f"{self.name}: accepts {group} but has no _compute_group() for it")

    def _plan(self, bound: Part) -> Plan:
        """Make the plan of a part. The device accepts every node and group of the part."""
        return self.plan_class(self, bound)

    def _synchronize(self) -> None:
        """Wait for queued work. A synchronous backend does nothing here.

        Any thread may call this, because a buffer waits for the streams of its device before it is
        freed; also when another thread has just closed the stream, and nothing is left to wait for.
        """

    def _has_failed(self) -> bool:
        """True if queued work has failed and `_synchronize` will raise its error. Does not wait."""
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
        if name in SETTABLE and name not in members(type(self)):
            kind = type(self).__name__
            raise Unsupported(
                f"{self.device.name}: {name} cannot be set: {kind} has no "
                f"{SETTABLE[name].__name__}; ask isinstance() first (a class that has it "
                f"declares {name})"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', closed' if self.closed else ''}>"


if TYPE_CHECKING:

    class EventStream(Backend, SupportsEvents):
        """What `has_events` finds."""

    class TransferStream(Backend, SupportsAsyncTransfer):
        """What `queues_transfers` finds."""

    class CopyStream(Backend, SupportsAsyncCopy):
        """What `queues_copies` finds."""


# For what every copy of every run asks: `isinstance` of a protocol takes 20 us in Python 3.11.
def has_events(stream: Backend) -> "TypeGuard[EventStream]":
    """`isinstance(stream, SupportsEvents)`, quickly."""
    return hasattr(stream, "record") and hasattr(stream, "accepts") and hasattr(stream, "wait")


def queues_transfers(stream: Backend) -> "TypeGuard[TransferStream]":
    """`isinstance(stream, SupportsAsyncTransfer)`, quickly."""
    return hasattr(stream, "write_async") and hasattr(stream, "read_async")


def queues_copies(stream: Backend) -> "TypeGuard[CopyStream]":
    """`isinstance(stream, SupportsAsyncCopy)`, quickly."""
    return hasattr(stream, "copy_async")


def order_after(first: Backend, then: Backend) -> None:
    """Let work queued on `then` from now on start after all work queued on `first` so far."""
    if first is then:
        return
    if has_events(first) and has_events(then):
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
    """Tell the listeners of the stream `whom` of a copy, by a stream or now by the host."""
    for watch in whom.watches:
        watch.moves(by, source, target, size)
