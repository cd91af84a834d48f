"""`Timeline`: when the queued work of fake streams is done: late, and in a seeded random order."""

import random
import threading
from collections import deque
from collections.abc import Callable

from tensorplug.backend import Event
from tensorplug.errors import TensorplugError

Job = Callable[[], None]


class Timeline:
    """Runs queued jobs when somebody waits, mixed with jobs of other streams as chance has it.

    Streams that share a timeline overlap; a missing wait between them shows as a wrong result for
    some seed. What nobody waits for is never done.
    """

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._streams: list[Stream] = []
        # A job may wait for another stream, and a finalizer may run while a job does.
        self._lock = threading.RLock()

    def stream(self) -> "Stream":
        """Return a new stream."""
        stream = Stream(self)
        with self._lock:
            self._streams.append(stream)
        return stream

    def forget(self, stream: "Stream") -> None:
        """Drop a stream and what it had queued."""
        with self._lock:
            stream.drop()
            if stream in self._streams:
                self._streams.remove(stream)

    def run(self, stream: "Stream", position: int) -> None:
        """Do jobs until `stream` has done `position` of its own."""
        with self._lock:
            while stream.done < position:
                ready = [s for s in self._streams if s.ready]
                if ready:
                    self._chance.choice(ready).step()
                elif not self._run_others():
                    # A finalizer waits for the stream whose job it interrupts: that cannot end.
                    return

    def _run_others(self) -> bool:
        """Do what a stream of this timeline waits for in another one; False if none does."""
        awaited = (stream.awaits for stream in self._streams)
        event = next((e for e in awaited if e is not None and e.timeline is not self), None)
        if event is not None:
            event.synchronize()
        return event is not None


class Stream:
    """Jobs in order. One that fails takes those behind it along; `take_error` tells which."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.done = 0
        self._jobs: deque[tuple[Job, NullEvent | None]] = deque()
        self.busy = False
        self._error: TensorplugError | None = None

    @property
    def queued(self) -> int:
        """How many jobs were ever queued."""
        return self.done + len(self._jobs) + self.busy

    @property
    def ready(self) -> bool:
        """Whether the next job could be done now: it waits for no other stream."""
        return bool(self._jobs) and not self.busy and self.awaits is None

    @property
    def awaits(self) -> "NullEvent | None":
        """The event that the next job waits for, while it is not reached."""
        event = self._jobs[0][1] if self._jobs else None
        return None if event is None or event.done else event

    def put(self, job: Job, after: "NullEvent | None" = None) -> None:
        """Queue `job`, to be done once the event is reached."""
        self._jobs.append((job, after))

    def step(self) -> None:
        """Do the next job."""
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
        """Forget what is queued; waiting for it ends."""
        self.done += len(self._jobs)
        self._jobs.clear()

    def take_error(self) -> TensorplugError | None:
        """Return the first error since the last call."""
        error, self._error = self._error, None
        return error


class NullEvent(Event):
    """A mark in a fake stream."""

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
