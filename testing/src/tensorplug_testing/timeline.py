"""`Timeline`: runs the queued work of fake streams as late as possible, in seeded random order."""

import random
import threading
from collections import deque
from collections.abc import Callable

from tensorplug.device import Event
from tensorplug.errors import DeviceError, TensorplugError

Job = Callable[[], None]


class Gate:
    """Stops the work of one fake device while the gate is shut."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_shut = False
        self.limit = 0.0

    def shut(self, limit: float) -> None:
        """Stop all work; a call that waits for it gives up after `limit` seconds."""
        self.limit = limit
        self.is_shut = True

    def open(self) -> None:
        """Let work continue."""
        self.is_shut = False


class Timeline:
    """Runs queued jobs when the host waits, interleaved at random with jobs of other streams.

    Streams that share a timeline overlap; a missing wait between them shows as a wrong result for
    some seed. A job for which the host does not wait is never done.
    """

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._streams: list[Stream] = []
        self._worker = 0
        # A job may wait for another stream, and a finalizer may run while a job does.
        self._lock = threading.Condition(threading.RLock())

    def stream(self, gate: Gate | None = None) -> "Stream":
        """Return a new stream, which does no work while `gate` is shut."""
        stream = Stream(self, gate or Gate(""))
        with self._lock:
            self._streams.append(stream)
        return stream

    def forget(self, stream: "Stream") -> None:
        """Drop a stream and its queued jobs."""
        with self._lock:
            stream.drop()
            if stream in self._streams:
                self._streams.remove(stream)

    def run(self, stream: "Stream", position: int) -> None:
        """Run jobs until `stream` has done `position` jobs in total."""
        with self._lock:
            while stream.done < position:
                ready = [s for s in self._streams if s.ready]
                if ready:
                    self._step(self._chance.choice(ready))
                    continue
                if self._run_others():
                    continue
                held = next((s.gate for s in self._streams if s.held), None)
                if held is None:
                    # A finalizer waits for the stream whose job it interrupts: that cannot end.
                    return
                self.wait_for(held)

    def wait_for(self, gate: Gate) -> None:
        """Wait until `gate` is open. Raises DeviceError after its limit."""
        if threading.get_ident() == self._worker:
            # A job that has started must finish: other threads must not see half of it.
            return
        with self._lock:
            if not self._lock.wait_for(lambda: not gate.is_shut, gate.limit):
                raise DeviceError(
                    f"{gate.name}: hangs: nothing was done for {gate.limit:g} s; call release()"
                )

    def wake(self) -> None:
        """Wake threads that wait for a gate."""
        with self._lock:
            self._lock.notify_all()

    def _step(self, stream: "Stream") -> None:
        before, self._worker = self._worker, threading.get_ident()
        try:
            stream.step()
        finally:
            self._worker = before

    def _run_others(self) -> bool:
        """Run work of another timeline for which a stream here waits; False if none waits."""
        awaited = (stream.awaits for stream in self._streams)
        event = next((e for e in awaited if e is not None and e.timeline is not self), None)
        if event is not None:
            event.synchronize()
        return event is not None


class Stream:
    """Jobs in order. A failed job drops the jobs behind it; `take_error` returns its error."""

    def __init__(self, timeline: Timeline, gate: Gate) -> None:
        self.timeline = timeline
        self.gate = gate
        self.done = 0
        self.queued = 0
        """The number of jobs queued so far, including jobs that are done.

        It is counted and not summed up, because another thread may run a job meanwhile.
        """
        self._jobs: deque[tuple[Job, NullEvent | None]] = deque()
        self.busy = False
        self._error: TensorplugError | None = None

    @property
    def ready(self) -> bool:
        """True if the next job could run now: the gate is open and no event is missing."""
        return not self.gate.is_shut and self._could_go_on

    @property
    def held(self) -> bool:
        """True if the next job waits only for the gate."""
        return self.gate.is_shut and self._could_go_on

    @property
    def _could_go_on(self) -> bool:
        return bool(self._jobs) and not self.busy and self.awaits is None

    @property
    def awaits(self) -> "NullEvent | None":
        """The event for which the next job waits; None if there is none or it is reached."""
        event = self._jobs[0][1] if self._jobs else None
        return None if event is None or event.done else event

    def put(self, job: Job, after: "NullEvent | None" = None) -> None:
        """Queue `job`, which runs after the event `after` is reached."""
        self._jobs.append((job, after))
        self.queued += 1

    def step(self) -> None:
        """Run the next job."""
        job, _ = self._jobs.popleft()
        self.busy = True
        try:
            job()
        except TensorplugError as error:
            self._error = self._error or error
            self.drop()
        finally:
            self.busy = False
            self.done += 1

    def drop(self) -> None:
        """Drop the queued jobs; threads that wait for them stop waiting."""
        self.done += len(self._jobs)
        self._jobs.clear()

    @property
    def has_failed(self) -> bool:
        """True if a job failed since the last `take_error()`."""
        return self._error is not None

    def take_error(self) -> TensorplugError | None:
        """Return the first error since the last call."""
        error, self._error = self._error, None
        return error


class NullEvent(Event):
    """An event of a fake stream."""

    def __init__(self, stream: Stream, family: str) -> None:
        self.family = family
        self._stream = stream
        self._position = stream.queued

    @property
    def timeline(self) -> Timeline:
        """The timeline of the stream."""
        return self._stream.timeline

    @property
    def done(self) -> bool:
        return self._stream.done >= self._position

    def synchronize(self) -> None:
        self._stream.timeline.run(self._stream, self._position)
