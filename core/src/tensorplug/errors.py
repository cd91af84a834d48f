"""The exception tree, refusals, and the mapping of driver errors to exceptions of the tree."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorplug.device.device import Device


class TensorplugError(Exception):
    """Root of every error that tensorplug raises on purpose."""

    devices: "tuple[Device, ...]" = ()
    """The devices whose calls raised or passed on the error, innermost first; may be empty."""
    node: str = ""
    """Name of the node that was being computed; empty if unknown."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text and the attributes, without `devices`, which belong to this process."""
        state = {name: value for name, value in vars(self).items() if name != "devices"}
        return _unpickled, (type(self), self.args, state)


def _unpickled(
    kind: type[TensorplugError], args: tuple[object, ...], state: Mapping[str, object]
) -> TensorplugError:
    """An error with the text of another process; classes with an `__init__` make none again."""
    error: TensorplugError = BaseException.__new__(kind, *args)
    vars(error).update(state)
    return error


class ShapeError(TensorplugError, ValueError):
    """Shapes, strides or offsets that an op or a buffer cannot accept."""


class DTypeError(TensorplugError, TypeError):
    """An element type that an op, a device or a conversion cannot accept."""


class GraphError(TensorplugError, ValueError):
    """A graph, a binding or a schedule that contradicts itself."""


class OptionError(TensorplugError, ValueError):
    """A device string, an environment variable or an option that cannot be understood."""


class FormatError(TensorplugError, ValueError):
    """A file or its metadata is damaged, truncated or of an unknown kind."""


class OutOfMemory(TensorplugError, MemoryError):
    """A device or the host cannot give the memory asked for."""


class BufferTooLarge(OutOfMemory):
    """One buffer larger than the largest single buffer of its type."""

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(
            f"{where}: a buffer of {size} bytes exceeds the largest single buffer, {limit} bytes; "
            "split it, or allocate tensors one by one"
        )


class DeviceError(TensorplugError, RuntimeError):
    """A device or its driver failed."""


class DeviceLost(DeviceError):
    """A device is gone: nothing on it can be reached any more."""


class DeviceHung(DeviceError):
    """A device does not answer within the limit it was given."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run that a device failure ended; devices by name, splits by index."""

    devices: tuple[str, ...]
    """Names of the devices that failed."""
    cause: str
    """"gone", "out of memory", "hung" or "failed"."""
    doing: str
    """The step at which the failure surfaced: "split 1 (mul_mat to relu)" or "copy x"."""
    node: str
    """The node that was being computed; empty if the device runs queued work and does not tell."""
    split: int | None
    """The split that was being queued; None before the first and after the last."""
    splits: int
    """The number of splits of the schedule."""
    completed: tuple[int, ...]
    """Splits whose work is known to be complete."""
    held: Mapping[str, int]
    """Bytes still held on the devices that failed: compute memory and tensors."""
    remedy: str
    """What the user can do, as a sentence."""
    boundary: int | None = None
    """The number of splits that need not run again: 0 to resume from the inputs, None if the run
    cannot resume."""
    not_later: tuple[str, ...] = ()
    """Reasons why the run cannot resume after a later completed split."""
    step: str = ""
    """The step at which the failure surfaced, with its number in `Schedule.explain()`; empty before
    the first step. An earlier step may have queued the work that failed."""


class RunFailed(DeviceError):
    """A device failed during a run of a schedule. The device's own error is `__cause__`.

    When RunFailed is raised, every stream that still answers has been synchronized.
    """

    def __init__(self, text: str, state: RunState) -> None:
        super().__init__(text)
        self.state = state


class Unsupported(TensorplugError, RuntimeError):
    """None of the given backends can run an op, or a backend lacks an ability."""


class BackendNotFound(TensorplugError, LookupError):
    """No installed backend or device has the given name."""


class BackendUnavailable(TensorplugError, RuntimeError):
    """An installed backend cannot be used on this machine; `__cause__` says why."""


class StateError(TensorplugError, RuntimeError):
    """The object is in a state that does not allow this call."""


class Closed(StateError):
    """The object was closed."""


class NotAllocated(StateError):
    """A tensor has no memory yet, or its memory is not visible to the host."""


class LiveChildren(StateError):
    """A parent cannot close while its children are open."""


class ConcurrentUse(StateError):
    """Two threads entered an object that only one thread may use at a time."""


class SchedulerBusy(ConcurrentUse):
    """Two schedules of one scheduler were asked to run at the same time."""


class StaleResult(StateError):
    """The memory of a result was reused by a later run."""


class HazardError(TensorplugError, RuntimeError):
    """A data race: two unordered accesses to the same bytes, one of them a write."""


class Aborted(TensorplugError, RuntimeError):
    """A run was stopped by its abort callback or observer."""


ErrorTable = Mapping[type[BaseException], type[TensorplugError]]


@contextmanager
def map_driver_errors(table: ErrorTable, doing: str) -> Iterator[None]:
    """Replace an exception of a driver by the exception that `table` gives for its type.

    `table` lists subclasses before their base classes: the first match wins. `doing` starts the
    error text. The driver's exception becomes `__cause__`; a TensorplugError passes unchanged.
    """
    try:
        yield
    except TensorplugError:
        raise
    except tuple(table) as theirs:
        ours = next(ours for kind, ours in table.items() if isinstance(theirs, kind))
        raise ours(f"{doing}: {theirs}") from theirs


class blaming:  # noqa: N801 - reads as what it does: `with blaming(device)`
    """Context manager that appends `device` to `devices` of a TensorplugError passing through."""

    __slots__ = ("_device",)

    def __init__(self, device: "Device") -> None:
        self._device = device

    def __enter__(self) -> None:
        """Do nothing: only a failure is recorded."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, TensorplugError) and self._device not in error.devices:
            error.devices = (*error.devices, self._device)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a device does not run a node or a group."""

    reason: str
