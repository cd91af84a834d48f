"""The exception tree, refusals, and the mapping of driver errors to exceptions of the tree."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorplug.device.device import Device


class TensorplugError(Exception):
    """Root of every error that tensorplug raises on purpose.

    >>> try:
    ...     tp.open("vulkan")
    ... except tp.TensorplugError as error:
    ...     print(type(error).__name__)
    BackendNotFound
    """

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
    """Shapes, strides or offsets that an op or a buffer cannot accept.

    >>> tp.input("x", (2, 3), tp.F32).reshape(4, 2)
    Traceback (most recent call last):
    tensorplug.errors.ShapeError: reshape: 6 elements do not fill sizes (2, 4, 1, 1); got x [2, 3]
    """


class DTypeError(TensorplugError, TypeError):
    """An element type that an op, a device or a conversion cannot accept.

    >>> tp.dtype(str)
    Traceback (most recent call last):
    tensorplug.errors.DTypeError: ...
    """


class GraphError(TensorplugError, ValueError):
    """A graph, a binding or a schedule that contradicts itself.

    >>> tp.op("mulmat")
    Traceback (most recent call last):
    tensorplug.errors.GraphError: op: unknown op 'mulmat'; did you mean 'mul_mat'?
    """


class OptionError(TensorplugError, ValueError):
    """A device string, an environment variable or an option that cannot be understood.

    >>> tp.open("cpu?cores=2")
    Traceback (most recent call last):
    tensorplug.errors.OptionError: cpu:0: unknown option 'cores'; known options: threads...
    """


class FormatError(TensorplugError, ValueError):
    """A file or its metadata is damaged, truncated or of an unknown kind.

    >>> from tensorplug.gguf import open_gguf
    >>> open_gguf("missing.gguf")
    Traceback (most recent call last):
    tensorplug.errors.FormatError: missing.gguf: No such file or directory; give ...
    """


class OutOfMemory(TensorplugError, MemoryError):
    """A device or the host cannot give the memory asked for.

    >>> from tensorplug_testing.null import NullDevice
    >>> with NullDevice("card:0", memory=1024) as card, card.open() as stream:
    ...     stream.place("w", np.zeros(1024, np.float32))
    Traceback (most recent call last):
    tensorplug.errors.OutOfMemory: card:0: no room for a buffer of ... bytes: ...
    """


class BufferTooLarge(OutOfMemory):
    """One buffer larger than the largest single buffer of its type."""

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(
            f"{where}: a buffer of {size} bytes exceeds the largest single buffer, {limit} bytes; "
            "split it, or allocate tensors one by one"
        )


class DeviceError(TensorplugError, RuntimeError):
    """A device or its driver failed.

    >>> issubclass(tp.DeviceLost, tp.DeviceError)
    True
    """


class DeviceLost(DeviceError):
    """A device is gone: nothing on it can be reached any more.

    >>> from tensorplug_testing.null import NullDevice
    >>> with NullDevice("card:0") as card, card.open() as stream:
    ...     card.lose()
    ...     stream.place("w", np.zeros(4, np.float32))
    Traceback (most recent call last):
    tensorplug.errors.DeviceLost: ...
    """


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
    """None of the given backends can run an op, or a backend lacks an ability.

    >>> with tp.open("cpu") as cpu:
    ...     tp.from_dlpack(np.ones((4, 4), np.float32)[:, ::2], cpu, copy=False)
    Traceback (most recent call last):
    tensorplug.errors.Unsupported: ...
    """


class BackendNotFound(TensorplugError, LookupError):
    """No installed backend or device has the given name.

    >>> tp.open("vulkan")
    Traceback (most recent call last):
    tensorplug.errors.BackendNotFound: vulkan: no installed backend has this name; ...
    """


class BackendUnavailable(TensorplugError, RuntimeError):
    """An installed backend cannot be used on this machine; `__cause__` says why.

    >>> class Plugin:
    ...     api_version = (0, 1)
    ...
    ...     @tp.hookimpl
    ...     def tensorplug_score(self):
    ...         return tp.Refusal("no card in this machine")
    >>> registry = tp.Registry()
    >>> registry.register(Plugin(), "acme").name
    'acme'
    >>> registry.open("acme")
    Traceback (most recent call last):
    tensorplug.errors.BackendUnavailable: ...
    """


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
    """The reason why a device does not run a node or a group.

    >>> from tensorplug_testing.null import NullDevice
    >>> with NullDevice("card:0") as card:
    ...     card.refuses(tp.gelu(tp.input("x", (2, 3), tp.F32)))
    Refusal(reason='card:0: no kernel for gelu')
    """

    reason: str
