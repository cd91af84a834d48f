"""The exception tree, refusals, and the one place where driver errors become ours."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tensorplug.device.device import Device


class TensorplugError(Exception):
    """Root of every error that tensorplug raises on purpose."""

    devices: "tuple[Device, ...]" = ()
    """Through which devices it came, the innermost first, where that is known."""
    node: str = ""
    """What was being computed, where that is known."""


class ShapeError(TensorplugError, ValueError):
    """Shapes, strides or offsets that an op or a buffer cannot accept."""


class DTypeError(TensorplugError, TypeError):
    """An element type that an op, a device or a conversion cannot accept."""


class GraphError(TensorplugError, ValueError):
    """A graph, a binding or a schedule that contradicts itself."""


class OptionError(TensorplugError, ValueError):
    """A device string, an environment variable or an option that means nothing."""


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
    """How far a run came that a device broke off; devices by name, splits by index."""

    devices: tuple[str, ...]
    """Which failed."""
    cause: str
    """"gone", "out of memory", "hung" or "failed"."""
    doing: str
    """What the run was at, such as "split 1 (mul_mat to relu)" or "copy x"."""
    node: str
    """The node that was being computed; empty where the device works late and does not say."""
    split: int | None
    """The split that was being queued; None before the first and after the last."""
    splits: int
    completed: tuple[int, ...]
    """Splits that are known to be done."""
    held: Mapping[str, int]
    """Bytes still held on the devices that failed: compute memory and tensors."""
    remedy: str
    boundary: int | None = None
    """How many splits need not run again; 0 is from the inputs, None where nothing goes on."""
    not_later: tuple[str, ...] = ()
    """Why the run does not go on behind later splits that are done."""


class RunFailed(DeviceError):
    """A device failed in the middle of a schedule; its own error is the cause.

    All streams that still answer have been waited for.
    """

    def __init__(self, text: str, state: RunState) -> None:
        super().__init__(text)
        self.state = state


class Unsupported(TensorplugError, RuntimeError):
    """No given backend can run an op, or an ability is missing."""


class BackendNotFound(TensorplugError, LookupError):
    """No installed distribution or device answers to a name."""


class BackendUnavailable(TensorplugError, RuntimeError):
    """An installed backend cannot be used here; the cause is chained."""


class StateError(TensorplugError, RuntimeError):
    """The object is in no state for this call."""


class Closed(StateError):
    """The object was closed."""


class NotAllocated(StateError):
    """A tensor has no memory yet, or its memory is not visible to the host."""


class LiveChildren(StateError):
    """A parent cannot close while its children are open."""


class ConcurrentUse(StateError):
    """Two threads entered an object that belongs to one."""


class SchedulerBusy(ConcurrentUse):
    """Two schedules of one scheduler were asked to run at once."""


class StaleResult(StateError):
    """The memory of a result was reused by a later run."""


class HazardError(TensorplugError, RuntimeError):
    """Two accesses to the same bytes that nothing orders; found by a sanitizer."""


class Aborted(TensorplugError, RuntimeError):
    """A run was stopped by its abort callback or observer."""


ErrorTable = Mapping[type[BaseException], type[TensorplugError]]


@contextmanager
def map_driver_errors(table: ErrorTable, doing: str) -> Iterator[None]:
    """Raise our error for a driver's, chained; `table` lists narrow types first."""
    try:
        yield
    except TensorplugError:
        raise
    except tuple(table) as theirs:
        ours = next(ours for kind, ours in table.items() if isinstance(theirs, kind))
        raise ours(f"{doing}: {theirs}") from theirs


class blaming:  # noqa: N801 - reads as what it does: `with blaming(device)`
    """Adds `device` to those through which an error came."""

    __slots__ = ("_device",)

    def __init__(self, device: "Device") -> None:
        self._device = device

    def __enter__(self) -> None:
        """Nothing to do until something fails."""

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
    """An expected "no" with its reason; falsy."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False
