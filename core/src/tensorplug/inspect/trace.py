"""`Trace`: a timeline of schedules with one track for each stream, as Chrome trace events.

Perfetto (ui.perfetto.dev) and chrome://tracing open the file. Format: "Trace Event Format", Google,
2016. Times are in nanoseconds of `time.perf_counter_ns`.
"""

import atexit
import json
import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from tensorplug.device.abilities import SupportsProfiling
from tensorplug.device.backend import Backend
from tensorplug.device.observing import TRACE
from tensorplug.system.forks import in_child
from tensorplug.system.wholefile import whole_file

logger = logging.getLogger("tensorplug.inspect.trace")

HOST = "host"
"""The name of the track of the host: work of the program's own threads."""
MOST_SPANS = 1_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on a track; `start` and `end` are in nanoseconds."""

    track: str
    name: str
    start: int
    end: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow for a copy `span`, which starts at the last earlier work of stream `source`."""

    source: str
    span: Span


class Trace:
    """Records spans of schedulers: `Scheduler(backends, trace=trace)`.

    As a context manager, it writes the file `path` at the end. Streams that time their own work
    (SupportsProfiling) show the time on the device. For other streams the trace shows the host's
    time in the call, which for asynchronous streams is only the time of queueing. At most `limit`
    spans are kept; the file says how many were dropped. Thread-safe.

    >>> x = tp.input("x", (4,), tp.F32)
    >>> trace = tp.Trace()
    >>> with tp.open("cpu") as cpu, tp.Scheduler([cpu], trace=trace) as scheduler:
    ...     results = scheduler.schedule(x * 2).run({x: np.ones(4)})
    >>> len(trace.spans) > 0
    True
    """

    def __init__(self, path: str | Path | None = None, *, limit: int = MOST_SPANS) -> None:
        self.path = None if path is None else Path(path)
        self.limit = limit
        self.dropped = 0
        self._spans: list[Span] = []
        self._arrows: list[Arrow] = []
        self._tracks = [HOST]
        # Weak keys: a trace outlives streams and must not keep them alive.
        self._streams: WeakKeyDictionary[Backend, str] = WeakKeyDictionary()
        self._lock = threading.Lock()
        in_child(self)

    def _renew_after_fork(self) -> None:
        self._lock = threading.Lock()

    # --- recording -------------------------------------------------------------------------

    def add(self, *backends: Backend) -> None:
        """Give each stream a track, and switch on the timing of streams with SupportsProfiling."""
        for backend in backends:
            with self._lock:
                self._name(backend)
            if isinstance(backend, SupportsProfiling):
                backend.profile = True

    def _name(self, backend: Backend) -> None:
        if backend in self._streams:
            return
        taken = {track for other, track in self._streams.items() if not other.closed}
        names = (f"{backend.name} stream {i}" for i in range(2, len(taken) + 2))
        name = next(n for n in (backend.name, *names) if n not in taken)
        self._streams[backend] = name
        if name not in self._tracks:
            self._tracks.append(name)

    @contextmanager
    def span(
        self, name: str, backend: Backend | None = None, source: Backend | None = None, **facts: Any
    ) -> Iterator[None]:
        """Record the `with` block as a span on the track of `backend`, by default of the host.

        For a stream that times its own work the block only queues work: the span is on the host's
        track, and its facts name the stream. With `source`, an arrow leads from the last work of
        that stream to the span.
        """
        track = HOST
        if backend is not None:
            track = self._streams[backend]
            if isinstance(backend, SupportsProfiling):
                facts["stream"], track = track, HOST
        start = perf_counter_ns()
        try:
            yield
        finally:
            made = Span(track, name, start, perf_counter_ns(), facts)
            arrow = None if source is None else Arrow(self._streams[source], made)
            self._keep(made, arrow)

    def collect(self, *backends: Backend) -> None:
        """Take over the spans of those of `backends` that time their own work, by default of all.

        Synchronize them before.
        """
        for backend in backends or tuple(self._streams):
            track = self._streams[backend]
            if isinstance(backend, SupportsProfiling):
                for done in backend.take_spans():
                    self._keep(Span(track, done.name, done.start, done.end))

    def _keep(self, span: Span, arrow: Arrow | None = None) -> None:
        with self._lock:
            if len(self._spans) >= self.limit:
                self.dropped += 1
                return
            self._spans.append(span)
            if arrow is not None:
                self._arrows.append(arrow)

    # --- reading ---------------------------------------------------------------------------

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans so far, in the order of their start."""
        with self._lock:
            return tuple(sorted(self._spans, key=lambda s: (s.start, -s.end)))

    def to_json(self) -> dict[str, Any]:
        """The trace events as dictionaries; times are in microseconds from the first span."""
        spans = self.spans
        begin = spans[0].start if spans else 0
        numbers = {track: i for i, track in enumerate(self._tracks)}

        def at(time: int, track: str) -> dict[str, Any]:
            return {"pid": 1, "tid": numbers[track], "ts": (time - begin) / 1000}

        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "tensorplug"}}
        ]
        events += [
            {"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": track}}
            for track, i in numbers.items()
        ]
        for span in spans:
            took = {"dur": (span.end - span.start) / 1000, "args": dict(span.facts)}
            events.append({"ph": "X", "name": span.name, **at(span.start, span.track), **took})
        for i, (arrow, origin) in enumerate(self._origins(spans)):
            common = {"name": "copy", "cat": "copy", "id": i}
            events.append({"ph": "s", **common, **at(origin.end, origin.track)})
            head = at(max(origin.end, arrow.span.start), arrow.span.track)
            events.append({"ph": "f", "bp": "e", **common, **head})
        facts = {"begin_ns": begin}
        if self.dropped:
            facts["dropped_spans"] = self.dropped
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}

    def _origins(self, spans: tuple[Span, ...]) -> Iterator[tuple[Arrow, Span]]:
        """Each arrow, with the last span of its source stream that ended before the copy did."""
        by_stream: dict[str, list[Span]] = {}
        for span in sorted(spans, key=lambda s: s.end):
            by_stream.setdefault(span.facts.get("stream", span.track), []).append(span)
        for arrow in list(self._arrows):
            there = by_stream.get(arrow.source, [])
            last = bisect_right(there, arrow.span.end, key=lambda s: s.end) - 1
            if last >= 0 and there[last] is arrow.span:
                last -= 1
            if last >= 0:
                yield arrow, there[last]

    def save(self, path: str | Path) -> None:
        """Write the trace events to a file."""
        Path(path).write_text(json.dumps(self.to_json()), encoding="utf-8")

    def close(self) -> None:
        """Drain the streams, take their spans, switch off the timing, and write the file."""
        streams = list(self._streams)
        for backend in streams:
            if isinstance(backend, SupportsProfiling) and not backend.closed:
                backend.drain()
        self.collect()
        for backend in streams:
            if isinstance(backend, SupportsProfiling) and not backend.closed:
                backend.profile = False
        if self.path is not None:
            self.save(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_starting = threading.Lock()


def of_process(path: str) -> Trace:
    """The trace that all schedulers of the process share; `path` is the value of TENSORPLUG_TRACE.

    It is written to the file `path` at the end of the process. If `path` is a folder, the file is
    `PID.json` in it, so that several processes write different files.
    """
    with _starting:
        return _started(path)


@cache
def _started(path: str) -> Trace:
    trace = Trace()
    atexit.register(_end, trace, Path(path))
    return trace


def _end(trace: Trace, path: Path) -> None:
    trace.close()
    target = path / f"{os.getpid()}.json" if path.is_dir() else path
    try:
        with whole_file(target) as part:
            trace.save(part)
    except OSError as error:
        logger.error("%s=%s: the trace cannot be written: %s", TRACE, path, error)
