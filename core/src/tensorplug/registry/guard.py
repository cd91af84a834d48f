"""`attempt`: calls plugin code, which may raise any exception."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that plugin code raised."""

    error: BaseException


def attempt(work: Callable[[], T]) -> T | Failure:
    """Call `work`; return its result, or a Failure with the exception that it raised.

    SystemExit becomes a Failure too. KeyboardInterrupt is raised, also from an exception group.
    """
    try:
        return work()
    except BaseException as error:
        groups = isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)
        if groups or isinstance(error, KeyboardInterrupt):
            raise
        return Failure(error)
