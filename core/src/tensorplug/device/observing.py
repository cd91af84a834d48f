"""What observes schedules, made in rooms below them; `tensorplug/__init__` names the makers."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorplug.inspect.sanitizer import Sanitizer
    from tensorplug.inspect.trace import Trace
    from tensorplug.planning.explain import Explanation

TRACE = "TENSORPLUG_TRACE"
"""The environment variable that names the trace file of schedulers without a trace argument."""
SANITIZE = "TENSORPLUG_SANITIZE"
"""The environment variable that makes every scheduler check for races when it is 1."""


class Makers:
    """Functions of rooms below; `tensorplug/__init__` sets them when it is imported."""

    process_trace: "Callable[[str], Trace]"
    """Returns the trace of the process, for the file that TRACE names."""
    sanitizer: "Callable[..., Sanitizer]"
    """Makes a sanitizer of some streams."""
    page: "Callable[[Explanation, str], str]"
    """Returns the HTML page of an explanation, with a title."""


MAKERS = Makers()


def trace_of_process() -> "Trace | None":
    """The trace that all schedulers of the process share if TRACE is set, else None."""
    path = os.environ.get(TRACE)
    return MAKERS.process_trace(path) if path else None


def is_sanitizing() -> bool:
    """True if SANITIZE asks every scheduler to check for races."""
    return os.environ.get(SANITIZE) == "1"
