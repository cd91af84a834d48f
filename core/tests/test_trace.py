"""Traces: what is recorded of a run, and the events that are written."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.backend import DeviceSpan
from tensorplug.testing.null import NullBackend, NullDevice
from tensorplug.trace import HOST

DATA = np.ones((4, 8), np.float32)


@pytest.fixture
def streams(null: NullDevice, host: NullDevice) -> Iterator[list[tp.Backend]]:
    with null.open() as first, host.open() as last:
        yield [first, last]


def traced_run(streams: Sequence[tp.Backend], trace: tp.Trace) -> np.ndarray:
    """One run with work on each stream: `doubled` on the first, its sum on the last."""
    x = tp.input("x", (4, 8), tp.F32)
    doubled = tp.add(x, x, name="doubled")
    y = tp.mul(doubled, doubled)
    pins = {doubled: streams[0], y: streams[-1]}
    with tp.Scheduler(streams, trace=trace) as scheduler, scheduler.schedule(y, pins=pins) as run:
        return run.run({x: DATA})[y]


def names(trace: tp.Trace, track: str) -> list[str]:
    return [span.name for span in trace.spans if span.track == track]


def test_each_stream_shows_its_work_and_the_host_the_rest(streams) -> None:
    trace = tp.Trace()

    result = traced_run(streams, trace)

    assert result.tolist() == (4 * DATA).tolist()
    assert names(trace, "null:0") == ["copy x", "add to add"]
    assert names(trace, "host:0") == ["copy doubled", "mul to mul"]
    assert names(trace, HOST)[0] == "schedule"
    assert {"write x", "wait"} <= set(names(trace, HOST))


def test_copy_has_its_bytes_and_an_arrow_from_where_the_data_was_made(streams) -> None:
    trace = tp.Trace()

    traced_run(streams, trace)

    copy = next(span for span in trace.spans if span.name == "copy doubled")
    assert copy.facts == {"bytes": DATA.nbytes}
    events = trace.to_json()["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    tails = {e["id"]: tracks[e["tid"]] for e in events if e["ph"] == "s"}
    heads = {e["id"]: tracks[e["tid"]] for e in events if e["ph"] == "f"}
    assert ("null:0", "host:0") in {(tails[i], heads[i]) for i in tails}


def test_times_begin_at_nought_and_are_in_order(streams) -> None:
    trace = tp.Trace()

    traced_run(streams, trace)

    times = [e["ts"] for e in trace.to_json()["traceEvents"] if e["ph"] == "X"]
    assert times[0] == 0
    assert times == sorted(times)
    assert all(e["dur"] >= 0 for e in trace.to_json()["traceEvents"] if e["ph"] == "X")


def test_file_is_written_at_the_end(streams, tmp_path) -> None:
    path = tmp_path / "run.json"

    with tp.Trace(path) as trace:
        traced_run(streams, trace)

    events = json.loads(path.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {HOST, "null:0", "host:0"}


def test_spans_beyond_the_limit_are_counted_not_kept(streams) -> None:
    trace = tp.Trace(limit=3)

    traced_run(streams, trace)

    assert len(trace.spans) == 3
    assert trace.to_json()["otherData"]["dropped_spans"] == trace.dropped > 0


def test_two_streams_of_one_device_have_tracks_of_their_own(null: NullDevice) -> None:
    trace = tp.Trace()
    with null.open() as first, null.open() as second:
        trace.add(first, second)

    events = trace.to_json()["traceEvents"]
    assert [e["args"]["name"] for e in events] == [HOST, "null:0", "null:0 stream 2"]


class TimedBackend(NullBackend):
    """A stream that says how long its work took: a second for each node."""

    profile = False

    def __init__(self, device: NullDevice) -> None:
        super().__init__(device)
        self.timed: list[DeviceSpan] = []

    def _compute(self, node: tp.Tensor, bindings: tp.Bindings) -> None:
        super()._compute(node, bindings)
        if self.profile:
            self.timed.append(DeviceSpan(node.op, 0, 10**9))

    def take_spans(self) -> Sequence[DeviceSpan]:
        taken, self.timed = self.timed, []
        return taken


@pytest.fixture
def timed(null: NullDevice) -> Iterator[TimedBackend]:
    with TimedBackend(null) as stream:
        yield stream


def test_stream_that_times_its_work_shows_that(timed: TimedBackend, host: NullDevice) -> None:
    trace = tp.Trace()
    with host.open() as last:
        traced_run([timed, last], trace)

    spans = [span for span in trace.spans if span.track == "null:0"]
    assert [(span.name, span.end - span.start) for span in spans] == [("add", 10**9)]
    assert "add to add" in names(trace, HOST)


def test_stream_times_nothing_after_the_trace(timed: TimedBackend, host: NullDevice) -> None:
    with host.open() as last, tp.Trace() as trace:
        traced_run([timed, last], trace)

    assert not timed.profile
