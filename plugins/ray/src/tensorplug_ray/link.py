"""`Link`: the actor of one device, as the driver sees it."""

import itertools
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ray
from ray import exceptions

from tensorplug import errors
from tensorplug.errors import DeviceError, DeviceLost, TensorplugError
from tensorplug_ray.worker import Failed

if TYPE_CHECKING:
    from tensorplug_ray.device import RayDevice

MOST_POSTED = 32 << 20
"""Bytes that may be on their way without an answer."""
GONE = (
    exceptions.RayActorError,
    exceptions.OutOfMemoryError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
)
"""Errors of Ray after which an actor, or what it sent, does not come back."""
TRACE = "Traceback (most recent call last):"
LOCK = threading.RLock()
"""Held while commands are queued or sent. One for all devices: a stream may send another's."""
_numbers = itertools.count(1)
_links: "WeakValueDictionary[str, Link]" = WeakValueDictionary()


Need = tuple[Any, "Link"]
"""The reference of an answer, and the link of the actor that gives it."""


def next_number() -> int:
    """A number that no buffer, stream or plan has yet."""
    return next(_numbers)


class Link:
    """Calls the actor of `device`, and turns what Ray raises into errors of tensorplug."""

    def __init__(self, device: "RayDevice", actor: Any) -> None:
        self.device = device
        self.actor = actor
        self.limit: float | None = None
        """Seconds after which an actor that does not answer counts as lost; None waits."""
        self.lost = False
        self.calls = 0
        self._methods: dict[tuple[str, int], Any] = {}
        self._posting = threading.Lock()
        self._posted: list[Any] = []
        self._posted_bytes = 0
        _links[actor._actor_id.hex()] = self

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.device.name

    def call(self, method: str, *args: Any) -> Any:
        """Call and wait. Raises the error of the actor."""
        (answer,) = self.wait([self.start(method, *args)])
        return answer

    def start(self, method: str, *args: Any) -> Any:
        """Call without waiting; returns the reference of the answer. Raises DeviceLost."""
        self.check()
        return self.send(method, *args)

    def send(self, method: str, *args: Any, values: int = 1) -> Any:
        """Call without waiting; returns the reference, or those of several `values`.

        Raises DeviceError if Ray cannot send, as with a full object store.
        """
        self.calls += 1
        called = self._methods.get((method, values))
        if called is None:
            called = getattr(self.actor, method).options(num_returns=values)
            self._methods[method, values] = called
        try:
            return called.remote(*args)
        except exceptions.RayError as error:
            raise self._error(error, ()) from error

    def post(self, method: str, *args: Any, size: int) -> None:
        """Call without waiting: later calls come after it, and the next wait raises its error."""
        reference = self.start(method, *args)
        with self._posting:
            self._posted.append(reference)
            self._posted_bytes += size
        if self._posted_bytes > MOST_POSTED:
            self.wait(())

    def cast(self, method: str, *args: Any) -> None:
        """Call without an answer; do nothing if the actor is gone."""
        if not self.lost and ray.is_initialized():
            with suppress(DeviceLost):
                self.send(method, *args)

    def wait(self, references: Sequence[Any], needs: Sequence[Need] = ()) -> list[Any]:
        """Wait for answers. Raises the first error among them, and DeviceLost.

        `needs` are answers of other actors without which this one cannot answer.
        """
        with self._posting:
            posted, self._posted, self._posted_bytes = self._posted, [], 0
        try:
            found = ray.get([*posted, *references], timeout=self.limit)
        except exceptions.GetTimeoutError as error:
            late = next((link for reference, link in needs if not is_ready(reference)), self)
            raise late.lose(f"no answer within {self.limit:g} s") from error
        except exceptions.RayError as error:
            raise self._error(error, needs) from error
        for answer in found:
            if isinstance(answer, Failed):
                raise raised(answer)
        return list(found[len(posted) :])

    def check(self) -> None:
        """Raise DeviceLost if the actor is gone."""
        if self.lost or not ray.is_initialized():
            raise DeviceLost(f"{self.name}: its actor is gone; connect again")

    def _error(self, error: Exception, needs: Sequence[Need]) -> TensorplugError:
        """The error to raise for Ray's: that of an argument is the error of another actor."""
        cause = getattr(error, "cause", None)
        inner = cause if isinstance(cause, exceptions.RayError) else error
        if not isinstance(inner, GONE):
            return DeviceError(f"{self.name}: {type(inner).__name__}: {line_of(inner)}")
        link = _links.get(str(getattr(inner, "actor_id", "") or ""))
        if link is None:  # Ray names no actor that it ended for want of memory
            link = next((link for reference, link in needs if _failed(reference)), self)
        return link.lose(line_of(inner))

    def lose(self, why: str) -> DeviceLost:
        """Give the actor up, and return the error that says why."""
        self.kill()  # it may live where only the connection failed: it would keep its memory
        found = DeviceLost(f"{self.name}: its actor is gone: {why}")
        found.devices = (self.device,)
        return found

    def kill(self) -> None:
        """End the actor with everything it holds."""
        if not self.lost and ray.is_initialized():
            ray.kill(self.actor)
        self.lost = True


def is_ready(reference: Any) -> bool:
    """True if an answer is there."""
    ready, _ = ray.wait([reference], timeout=0, fetch_local=False)
    return bool(ready)


def _failed(reference: Any) -> bool:
    """True if an answer is there, and is an error of Ray."""
    try:
        ray.get(reference, timeout=0)
    except exceptions.GetTimeoutError:
        return False
    except exceptions.RayError:
        return True
    return False


def raised(failed: Failed) -> TensorplugError:
    """The error that an actor told of, of the same class."""
    kind = getattr(errors, failed.kind, DeviceError)
    if not (isinstance(kind, type) and issubclass(kind, TensorplugError)):
        kind = DeviceError
    error = BaseException.__new__(kind, failed.text)  # not __init__, which may make another text
    error.node = failed.node
    return error


def typed(name: str, error: Exception) -> TensorplugError:
    """The error, as a DeviceError of the device `name` where it is not one of tensorplug."""
    if isinstance(error, TensorplugError):
        return error
    found = DeviceError(f"{name}: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def line_of(error: Exception) -> str:
    """The line of an error's text that says what is wrong: Ray adds traces."""
    text = str(error).strip()
    unmade = getattr(error, "actor_init_failed", False)
    if unmade or isinstance(error, exceptions.RayTaskError):
        return last_error(text)
    return text.splitlines()[0] if text else type(error).__name__


def last_error(text: str) -> str:
    """The last line of a text with traces that is as `Name: what is wrong`, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+: .", line) and not line.endswith(TRACE)]
    return (errors or lines or ["no reason given"])[-1]
