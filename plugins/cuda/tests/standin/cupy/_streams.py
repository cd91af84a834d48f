"""Work that is queued on streams, or captured, and the events between.

Work that is queued is done only when something waits for it, so that code which forgets to wait
sees old bytes. What a real GPU would do in the meantime is done step by step, one step each time
that an event is queried.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable

from cupy._machine import (
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_MERGE,
    CAPTURE_UNJOINED,
    CAPTURE_UNSUPPORTED,
    CAPTURED_EVENT,
    INVALID_HANDLE,
    NOT_READY,
    CUDARuntimeError,
    machine,
)

TICK = 1e-3
"""Milliseconds that work takes by the clock of its stream, unless a test says otherwise."""


class Capture:
    """Work of the streams that take part in a capture: each job, and the jobs that it comes after.

    Any order that keeps these is right, so each run has another one: first the latest job that may
    be done is, then chance decides.
    """

    def __init__(self, origin: "Queue") -> None:
        self.origin = origin
        self.queues = {origin}
        self.jobs: list[Callable[[], None]] = []
        self.after: list[frozenset[int]] = []
        self.handle = machine.new_handle()
        self.invalid = False
        self.over = False
        self._chance: random.Random | None = None

    def add(self, job: Callable[[], None], after: Iterable[int]) -> int:
        """Take a job; returns its number."""
        self.jobs.append(job)
        self.after.append(frozenset(after))
        return len(self.jobs) - 1

    def end(self) -> None:
        """Let go of all streams. Fails for a capture that is spoiled, or misses work at its end."""
        front = self.origin.front
        for queue in self.queues:
            queue.capture, queue.front = None, frozenset()
        self.over = True
        if self.invalid:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        if set(range(len(self.jobs))) - set().union(front, *self.after):
            raise CUDARuntimeError(CAPTURE_UNJOINED)

    def order(self) -> list[int]:
        """The numbers of all jobs, each behind those that it comes after."""
        followers: list[list[int]] = [[] for _ in self.jobs]
        waits = [len(after) for after in self.after]
        for number, after in enumerate(self.after):
            for earlier in after:
                followers[earlier].append(number)
        ready = [number for number, count in enumerate(waits) if not count]
        order = []
        while ready:
            ready.sort()
            order.append(ready.pop(self._chance.randrange(len(ready)) if self._chance else -1))
            for number in followers[order[-1]]:
                waits[number] -= 1
                if not waits[number]:
                    ready.append(number)
        self._chance = self._chance or random.Random(len(self.jobs))
        return order


class Queue:
    """The work of one stream, in order."""

    def __init__(self, ordinal: int, handle: int) -> None:
        self.ordinal = ordinal
        self.handle = handle
        self.jobs: deque[Callable[[], None]] = deque()
        self.queued = 0
        self.done = 0
        self.clock = 0.0
        """Milliseconds from the start of the stream to the end of what is queued."""
        self.capture: Capture | None = None
        self.front: frozenset[int] = frozenset()
        """While this captures: the jobs that the next one comes after."""
        self.retired = False
        """Whether it was destroyed; its work is done all the same."""

    def put(self, job: Callable[[], None], name: str = "") -> None:
        """Queue a job, or capture it; kernels have names."""
        if self.capture is not None:
            self.front = frozenset([self.capture.add(job, self.front)])
            return
        self.jobs.append(job)
        self.queued += 1
        self.clock += machine.times.get(name, TICK)

    def run(self, end: int) -> None:
        """Do all jobs before number `end`."""
        gpu = machine.gpus[self.ordinal]
        while self.done < end and self.jobs:
            job = self.jobs.popleft()
            try:
                if gpu.error is None:
                    job()
            except CUDARuntimeError as error:
                gpu.error = error
            finally:
                self.done += 1

    def forbid(self, what: str) -> None:
        """Fail for a call that is forbidden while this stream captures; that ends the capture."""
        if self.capture is not None:
            self.spoil(CAPTURE_UNSUPPORTED, what)

    def spoil(self, status: int, what: str = "") -> None:
        """Fail, and so will the end of the capture."""
        assert self.capture is not None
        self.capture.invalid = True
        raise CUDARuntimeError(status, what)

    def join(self, capture: Capture, front: frozenset[int]) -> None:
        """Capture from now on too, behind jobs of `capture`; or be behind these as well."""
        if capture.over:
            raise CUDARuntimeError(CAPTURED_EVENT, "of a capture that is over")
        if self.capture not in (None, capture):
            capture.invalid = True
            self.spoil(CAPTURE_MERGE)
        capture.queues.add(self)
        self.capture, self.front = capture, self.front | front

    def record(self, event: "Event") -> None:
        """Let an event mark all work so far."""
        if event.ordinal != self.ordinal:
            raise CUDARuntimeError(INVALID_HANDLE, "an event of another GPU")
        machine.check(self.ordinal)
        if self.capture is not None:
            event.captured = self.capture, self.front
        else:
            event.captured = None
            event.queue, event.position, event.clock = self, self.queued, self.clock

    def wait(self, event: "Event") -> None:
        """Start later work after what an event marks now."""
        first, position = event.queue, event.position
        if event.captured is not None:
            self.join(*event.captured)
        elif first is not None and self.capture is not None:
            self.spoil(CAPTURE_ISOLATION)
        elif first is not None:
            self.put(lambda: first.run(position))

    def synchronize(self) -> None:
        """Do all work."""
        self.forbid("the stream is waited for")
        machine.waits += 1
        self.run(self.queued)
        machine.check(self.ordinal)


class Event:
    """A mark in a stream; one that was never recorded is reached."""

    def __init__(self, *, timed: bool) -> None:
        self.ordinal = machine.current
        self.timed = timed
        self.queue: Queue | None = None
        self.position = 0
        self.clock = 0.0
        self.captured: tuple[Capture, frozenset[int]] | None = None
        """The capture in which it was recorded, and what comes before it there."""

    def forbid(self, what: str) -> None:
        """Fail for a call that is forbidden with an event that is part of a capture."""
        if self.captured is not None:
            self.captured[0].invalid = True
            raise CUDARuntimeError(CAPTURED_EVENT, what)

    def status(self) -> int:
        """Whether the work before it is done; each call does some of it."""
        self.forbid("an event is looked at")
        if self.queue is None:
            return 0
        self.queue.run(min(self.queue.done + 1, self.position))
        error = machine.gpus[self.queue.ordinal].error
        if error is not None:
            return error.status
        return 0 if self.queue.done >= self.position else NOT_READY

    def synchronize(self) -> None:
        """Do the work before it."""
        self.forbid("an event is waited for")
        if self.queue is not None:
            machine.waits += 1
            self.queue.run(self.position)
            machine.check(self.queue.ordinal)
