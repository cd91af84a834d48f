"""`Workers`: threads that run prepared steps side by side; and how many the BLAS may use."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import pairwise

import numpy as np

from tensorplug.device import OptionError
from tensorplug.system.forks import in_child

Step = Callable[[], object]
"""Something prepared that takes no arguments."""

MOST_THREADS = 1 << 12
"""Threads of the largest team; tensorplug-native's library takes no more."""


def check_threads(where: str, count: int) -> None:
    """Raise OptionError for a number of threads that no team can have."""
    if count < 1:
        raise OptionError(f"{where}: threads={count}; at least one thread is needed")
    if count > MOST_THREADS:
        raise OptionError(
            f"{where}: threads={count}, and at most {MOST_THREADS} can be used; give as many as "
            "there are cores"
        )


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # absent on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """A pool of `count` threads, the caller's own among them. Threads start on first use."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._pool = None  # its threads are the parent's

    def run(self, steps: Sequence[Step]) -> None:
        """Run all steps and wait; the first error is raised when all have ended."""
        if self.count == 1 or len(steps) < 2:
            for step in steps:
                step()
            return
        waiting = [self._threads().submit(step) for step in steps[1:]]
        try:
            steps[0]()
        finally:
            errors = [future.exception() for future in waiting]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads; a later run starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self.count - 1, "tensorplug-cpu", initializer=_quiet_arithmetic
                )
            return self._pool

    def __repr__(self) -> str:
        state = "asleep" if self._pool is None else "started"
        return f"<Workers {self.count} threads, {state}>"


class Team:
    """The workers that a backend uses: its own, or those it shares with others."""

    def __init__(self, count: int) -> None:
        self._own = self._present = Workers(count)

    @property
    def count(self) -> int:
        """How many threads there are."""
        return self._present.count

    def resize(self, count: int) -> None:
        """Use `count` threads of its own."""
        self._own.close()
        self._own = self._present = Workers(count)

    def share(self, workers: Workers | None) -> None:
        """Use `workers` from now on, its own threads ended; None for its own again."""
        self._own.close()
        self._present = workers or self._own

    def run(self, steps: Sequence[Step]) -> None:
        """Run all steps and wait, on the workers of the moment."""
        self._present.run(steps)

    def close(self) -> None:
        """End its own threads."""
        self._own.close()


def _quiet_arithmetic() -> None:
    # NaN and infinity are values here, as on every other device: no warnings about them.
    np.seterr(all="ignore")


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut `total` things into at most `parts` ranges of nearly equal length."""
    parts = max(1, min(parts, total))
    edges = [total * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))


class _Blas:
    """The BLAS of the process, whose number of threads all backends share."""

    def __init__(self) -> None:
        # Here, because compiled kernels never need the BLAS, and importing this takes 10 ms.
        from threadpoolctl import (  # type: ignore[import-untyped]  # noqa: PLC0415 - has no types
            ThreadpoolController,
        )

        self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        self._before = [library.get_num_threads() for library in self._libraries]
        self._users = 0
        self._lock = threading.Lock()
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def limited(self, count: int) -> Iterator[None]:
        """Use `count` threads; the last to leave restores what the first one found."""
        with self._lock:
            if not self._users:
                self._before = [library.get_num_threads() for library in self._libraries]
            self._users += 1
            for library in self._libraries:
                library.set_num_threads(count)
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for library, count in zip(self._libraries, self._before, strict=True):
                library.set_num_threads(count)


@cache
def _blas() -> _Blas:
    # NumPy has loaded its BLAS by now; looking for it takes a millisecond and is done once.
    return _Blas()


def blas_threads(count: int) -> AbstractContextManager[None]:
    """Limit the BLAS of this process to `count` threads while the context lasts."""
    return _blas().limited(count)
