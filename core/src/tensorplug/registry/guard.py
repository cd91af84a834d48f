"""The one place where plugin code may raise whatever it likes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """What plugin code raised."""

    error: BaseException


def attempt(work: Callable[[], T]) -> T | Failure:
    """Do `work`; what it raises comes back as a value, SystemExit too, KeyboardInterrupt not."""
    try:
        return work()
    except BaseException as error:
        groups = isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)
        if groups or isinstance(error, KeyboardInterrupt):
            raise
        return Failure(error)
