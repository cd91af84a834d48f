"""What a scheduler tells its trace, its sanitizer and its log."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferType, human
from tensorplug.graph.tensor import Storage, Tensor
from tensorplug.planning.assign import Field, is_weight
from tensorplug.planning.split import Split

if TYPE_CHECKING:
    from tensorplug.running.scheduler import Scheduler

logger = logging.getLogger("tensorplug.running")


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


def warn_of_distant_weights(splits: Sequence[Split], field: Field, warned: set[BufferType]) -> None:
    """Warn, once for each kind of memory, of weights in memory that no stream computes in.

    They are copied to another device in every run.
    """
    for split in splits:
        for copy in split.copies:
            kind = field.placed_type(copy.source)
            if kind is None or kind in warned or not is_weight(copy.source):
                continue
            if any(field.accepts(i, kind) for i in range(len(field.backends))):
                continue
            warned.add(kind)
            logger.warning(
                "weights %s lie in %s, where no stream of this scheduler computes: %s are copied "
                "to %s in each run; give the scheduler a stream of %s",
                label(copy.source),
                kind.name,
                human(copy.source.nbytes),
                field.backends[split.backend].name,
                kind.device.name,
            )
