"""`until_done`: repeats an attempt for as long as recovery can go on after a device was lost."""

from collections.abc import Callable
from typing import TypeVar

from tensorplug.errors import RunFailed
from tensorplug.running.failure import Attempt
from tensorplug.running.lost import MemoryLost

T = TypeVar("T")


def until_done(attempt: Attempt, do: Callable[[Attempt], T]) -> T:
    """Return what `do` returns for `attempt`, or for an attempt that follows it after a failure.

    A run that succeeds calls nothing of recovery; one that fails goes on only here. Raises
    RunFailed if the scheduler has no recovery.
    """
    runs, following = attempt.runs, attempt
    while True:
        attempt = following
        try:
            with runs.turn, attempt:
                return do(attempt)
        except (RunFailed, MemoryLost) as failure:
            if runs.recovery is None:
                raise
            following = runs.recovery.go_on(failure, attempt)
        finally:
            attempt.forget_memory()
