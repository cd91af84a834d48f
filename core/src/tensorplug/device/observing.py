"""What observes schedules, made in rooms below them; `tensorplug/__init__` names the makers."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tensorplug.device.backend import Backend
from tensorplug.graph.tensor import Array, Place, Tensor

if TYPE_CHECKING:
    from tensorplug.planning.explain import Explanation

TRACE = "TENSORPLUG_TRACE"
"""The environment variable that names the trace file of schedulers without a trace argument."""
SANITIZE = "TENSORPLUG_SANITIZE"
"""The environment variable that makes every scheduler check for races when it is 1."""


class Tracer(Protocol):
    """What schedulers call of a `Trace`."""

    def add(self, *backends: Backend) -> None: ...
    def span(
        self, name: str, backend: Backend | None = None, source: Backend | None = None, **facts: Any
    ) -> AbstractContextManager[None]: ...
    def collect(self, *backends: Backend) -> None: ...


class RaceDetector(Protocol):
    """What schedulers call of a `Sanitizer`."""

    def add(self, *streams: Backend) -> None: ...
    def about(self, tensor: Tensor) -> None: ...
    def touches(self, tensor: Tensor, place: Place, *, writes: bool = False) -> None: ...
    def shows(self, tensor: Tensor, value: Array) -> None: ...
    def close(self) -> None: ...


class Makers:
    """Functions of rooms below; `tensorplug/__init__` sets them when it is imported."""

    process_trace: Callable[[str], Tracer]
    """Returns the trace of the process, for the file that TRACE names."""
    sanitizer: Callable[..., RaceDetector]
    """Makes a sanitizer of some streams."""
    page: "Callable[[Explanation, str], str]"
    """Returns the HTML page of an explanation, with a title."""


MAKERS = Makers()


def trace_of_process() -> Tracer | None:
    """The trace that all schedulers of the process share if TRACE is set, else None."""
    path = os.environ.get(TRACE)
    return MAKERS.process_trace(path) if path else None


def is_sanitizing() -> bool:
    """True if SANITIZE asks every scheduler to check for races."""
    return os.environ.get(SANITIZE) == "1"
