"""What a scheduler tells its trace and its sanitizer."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tensorplug.backend import Backend
from tensorplug.tensor import Storage, Tensor

if TYPE_CHECKING:
    from tensorplug.scheduler.scheduler import Scheduler


def span(
    scheduler: "Scheduler",
    name: str,
    backend: Backend | None = None,
    source: Backend | None = None,
    **facts: Any,
) -> AbstractContextManager[None]:
    """What happens inside, in the trace of `scheduler` if it has one."""
    trace = scheduler.trace
    return nullcontext() if trace is None else trace.span(name, backend, source, **facts)


def label(tensor: Tensor) -> str:
    return tensor.name or f"{tensor.op} #{tensor.serial}"


def about(scheduler: "Scheduler", tensor: Tensor) -> None:
    if scheduler.sanitizer is not None:
        scheduler.sanitizer.about(tensor)


def host_touches(
    scheduler: "Scheduler", tensor: Tensor, place: Storage, *, writes: bool = False
) -> None:
    if scheduler.sanitizer is not None:
        scheduler.sanitizer.touches(tensor, place, writes=writes)
