"""Abilities: what devices, streams and plans may do besides what every one does.

Each is a protocol, which `isinstance` finds. Some are attributes that a class declares.
"""

import dis
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensorplug.device.buffer import Buffer, BufferType
from tensorplug.device.event import Event
from tensorplug.device.part import Part
from tensorplug.errors import Refusal
from tensorplug.fusion.formulas import Group, Pattern
from tensorplug.graph.tensor import Array, Place, Tensor

if TYPE_CHECKING:
    from tensorplug.device.backend import Backend

# --- of streams ----------------------------------------------------------------------------------


@runtime_checkable
class SupportsEvents(Protocol):
    """A stream that can be marked and can wait for another stream's mark."""

    def record(self) -> Event:
        """Return an event behind all work queued so far."""
        ...

    def accepts(self, event: Event) -> bool:
        """True if `wait` can order this stream after `event`."""
        ...

    def wait(self, event: Event) -> None:
        """Start work queued from now on after `event`."""
        ...


@runtime_checkable
class SupportsAsyncTransfer(Protocol):
    """A stream that copies between host and device in order with its other work.

    Core calls these methods, which take bytes of a buffer. Programs call
    `tensorplug.transfer.write_async` and `read_async`, which take tensors. Host memory must stay
    alive and unchanged until the next `synchronize()`, or until an event recorded behind the
    transfer is reached. The results of a run are queued for reading before the host waits.
    """

    def write_async(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Queue a copy of host bytes to `offset` of `buffer`."""
        ...

    def read_async(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Queue a copy from `offset` of `buffer` to host bytes."""
        ...


@runtime_checkable
class SupportsAsyncCopy(Protocol):
    """A stream that copies from memory of another stream.

    Core calls this method. Programs call `tensorplug.transfer.copy_async`.
    """

    def copy_async(self, source: "Backend", start: Place, target: Place, size: int) -> bool:
        """Queue a copy that starts after all work queued on `source`; False if it cannot be done.

        Wait for `source` by `order_after(source, self)`, which blames `source` for its own errors.
        Later work of this stream starts after the copy. Later work of `source` may start before it:
        a caller that overwrites the copied memory must call `order_after` first.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """Work of a stream from `start` to `end`, in nanoseconds of `time.perf_counter_ns`."""

    name: str
    start: int
    end: int


@runtime_checkable
class SupportsProfiling(Protocol):
    """A stream that can time its own work."""

    profile: bool
    """True if work queued from now on is timed."""

    def take_spans(self) -> Sequence[DeviceSpan]:
        """The spans of timed work that is done, in order. Each span is returned once."""
        ...


@runtime_checkable
class SupportsOptimize(Protocol):
    """A backend that reorders the nodes of its splits."""

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the same nodes in an order that keeps every dependency."""
        ...


@runtime_checkable
class SupportsConcurrency(Protocol):
    """A stream that runs independent work in parallel, with barriers between dependent work.

    The scheduler puts its work into stages (`Part.stages`) and gives different memory to work of
    one stage. `tensorplug.planning.stages.stages_of` finds where barriers are needed.
    """

    ahead: int
    """The number of nodes and groups by which work may move ahead into an earlier stage; 0 keeps
    the order."""


@runtime_checkable
class SupportsThreads(Protocol):
    """A backend whose work is done by a number of host threads.

    Programs set the attribute on an open stream. If the device has an option `threads`, for device
    strings such as `acme?threads=2`, `Device._open` must set the attribute from it.
    """

    threads: int
    """The number of threads, at least 1. A new number applies to work that is queued later."""


@runtime_checkable
class SupportsAbort(Protocol):
    """A backend that calls a function between nodes, which can stop the run."""

    abort_callback: Callable[[], bool] | None
    """A function that returns True to stop; the run then raises Aborted."""


@runtime_checkable
class SupportsReference(Protocol):
    """A backend that can use plain reference kernels instead of its fast kernels."""

    use_reference: bool


@runtime_checkable
class SupportsThreadPool(Protocol):
    """A backend that can share a thread pool with other streams."""

    def set_thread_pool(self, pool: object | None) -> None:
        """Use `pool`, which the same distribution made; None: use the stream's own pool again."""
        ...


# --- of plans, and of streams that plan ----------------------------------------------------------


@runtime_checkable
class SupportsNotes(Protocol):
    """A plan that adds notes on its nodes to `Schedule.explain`."""

    def notes(self) -> Mapping[Tensor, str]:
        """A short text for each node that has a note."""
        ...


@runtime_checkable
class SupportsSizes(Protocol):
    """A stream whose plans allocate memory that all its plans share."""

    def plan_sizes(self, parts: Iterable[Part]) -> Mapping[BufferType, int]:
        """Bytes that plans of these parts would allocate in all, without allocating."""
        ...


# --- of devices ----------------------------------------------------------------------------------


@runtime_checkable
class SupportsCollectives(Protocol):
    """A device that sums tensors over several devices of its kind."""

    def all_reduce(
        self, backends: "Sequence[Backend]", places: Sequence[Place], node: Tensor
    ) -> bool:
        """Replace each copy of `node` at `places` by their sum; False if that is not possible."""
        ...


@runtime_checkable
class SupportsFusion(Protocol):
    """A device that computes groups of nodes with one kernel.

    Its plans find groups in `Part.work`, or its streams have `_compute_group`.
    """

    fusions: Sequence[Pattern]
    """The patterns that the device has kernels for."""

    def refuses_group(
        self, group: Group, source_types: Mapping[Tensor, BufferType] | None = None
    ) -> Refusal | None:
        """Return the reason not to compute `group` as one, or None. `Device` implements this."""
        ...


@runtime_checkable
class SupportsHostImport(Protocol):
    """A device that computes on host memory without copying it."""

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Return a buffer over contiguous host memory. The buffer keeps `memory` alive.

        The owner may change the bytes between runs without notice: each run reads them again. A
        device with a limit on the size of buffers maps larger memory as overlapping parts, so that
        a tensor of `largest_tensor` bytes is in one part.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelText:
    """One compiled variant of a kernel, with its complete source.

    `file` is the text it is made from, `package/path`; `lowering` is the function that chose it.
    `types` (element types by role) and `defines` (constants) select the variant; `signature` names
    the arguments for readers.
    """

    name: str
    file: str
    lowering: str
    types: Mapping[str, str]
    defines: Mapping[str, Any]
    signature: str
    source: str
    suffix: str
    """File extension of the source, such as `.cl`."""


@runtime_checkable
class SupportsKernelTexts(Protocol):
    """A device that compiles its kernels from source texts."""

    def kernel_texts(self, node: Tensor) -> Sequence[KernelText]:
        """The kernels that compute `node`, in order; empty if the device refuses it."""
        ...


@runtime_checkable
class SupportsNuma(Protocol):
    """A device that can spread its memory and threads over the nodes of a NUMA machine."""

    def init_numa(self, strategy: str) -> None:
        """Set the NUMA strategy: `disabled`, `distribute`, `isolate`, `numactl` or `mirror`."""
        ...

    @property
    def is_numa(self) -> bool:
        """True if the machine has more than one NUMA node."""
        ...


# --- which a class has ---------------------------------------------------------------------------

SETTABLE: Mapping[str, type] = {
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
"""Attributes that only streams with an ability have, and the ability; other streams refuse them."""


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


def has_ability(kind: type, ability: Any) -> bool:
    """True if instances of the class `kind` have all members of a `Supports*` protocol.

    A class has a member if it defines or annotates it, or if its `__init__` assigns it.
    """
    wanted = [name for name in vars(ability) if not name.startswith("_")]
    wanted += [name for name in inspect.get_annotations(ability) if name not in wanted]
    return set(wanted) <= members(kind)
