"""Traces: what is recorded of a run, and the events that are written."""

import gc
import json
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import SupportsProfiling
from tensorplug.inspect.trace import HOST
from tensorplug_testing.null import NullDevice, null_devices

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


def tracks(trace: tp.Trace) -> list[str]:
    events = trace.to_json()["traceEvents"]
    return [e["args"]["name"] for e in events if e["name"] == "thread_name"]


def arrows(trace: tp.Trace) -> set[tuple[str, str]]:
    """The tracks from which and to which arrows lead."""
    events, names = trace.to_json()["traceEvents"], tracks(trace)
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    assert all(tails[i]["ts"] <= heads[i]["ts"] for i in heads)
    return {(names[tails[i]["tid"]], names[heads[i]["tid"]]) for i in heads}


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
    assert ("null:0", "host:0") in arrows(trace)


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
    named = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named == {"tensorplug", HOST, "null:0", "host:0"}


def test_spans_beyond_the_limit_are_counted_not_kept(streams) -> None:
    trace = tp.Trace(limit=3)

    traced_run(streams, trace)

    assert len(trace.spans) == 3
    assert trace.to_json()["otherData"]["dropped_spans"] == trace.dropped > 0


def test_two_streams_of_one_device_have_tracks_of_their_own(null: NullDevice) -> None:
    trace = tp.Trace()
    with null.open() as first, null.open() as second:
        trace.add(first, second)

    assert tracks(trace) == [HOST, "null:0", "null:0 stream 2"]


def test_batches_in_flight_show_uploads_work_and_reads(streams) -> None:
    trace = tp.Trace()
    x = tp.input("x", (4, 8), tp.F32)
    y = tp.add(x, x, name="y")
    with tp.Scheduler(streams, parallel=True, trace=trace) as scheduler:
        plan = scheduler.schedule(y, pins={y: streams[0]})
        flying = [plan.submit({x: DATA * i}) for i in range(3)]
        assert [float(f[y][0, 0]) for f in flying] == [0, 2, 4]

    assert names(trace, HOST).count("write x") == 3
    assert names(trace, "null:0").count("add to add") == 3
    assert names(trace, "null:0").count("read y") == 3


def test_schedulers_of_two_threads_share_a_trace() -> None:
    trace = tp.Trace()

    def work(device: NullDevice) -> None:
        with device, device.open() as stream:
            for _ in range(5):
                traced_run([stream], trace)

    devices = [NullDevice(f"host:{i}", host=True) for i in range(2)]
    threads = [threading.Thread(target=work, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(names(trace, d.name)) for d in devices] == [5, 5]


# --- streams that time their own work ----------------------------------------------------------


@pytest.fixture
def timed() -> Iterator[list[tp.Backend]]:
    """Two late streams that time what they do, the last in host memory."""
    first, last = null_devices(2, asynchronous=True, profiling=True, host=True)
    with first, last, first.open() as one, last.open() as two:
        yield [one, two]


def test_late_stream_shows_when_it_worked_and_the_host_when_it_queued(timed) -> None:
    trace = tp.Trace()

    traced_run(timed, trace)

    queued = next(s for s in trace.spans if s.name == "mul to mul")
    done = next(s for s in trace.spans if s.name == "mul")
    assert (queued.track, queued.facts["stream"], done.track) == (HOST, "null:1", "null:1")
    assert queued.end <= done.start <= done.end


def test_order_of_streams_is_the_order_of_what_they_did(timed) -> None:
    trace = tp.Trace()

    traced_run(timed, trace)

    done = [(s.track, s.name) for s in trace.spans if s.track != HOST]
    assert done == [("null:0", "add"), ("null:1", "mul"), ("null:1", "read")]


def test_copy_that_waits_points_back_to_what_the_stream_did(host: NullDevice) -> None:
    trace = tp.Trace()
    late = NullDevice("late:0", asynchronous=True, profiling=True)
    with late, late.open() as first, host.open() as last:
        traced_run([first, last], trace)

    assert ("late:0", "host:0") in arrows(trace)


def test_stream_times_nothing_before_and_after_the_trace(timed) -> None:
    assert isinstance(timed[0], SupportsProfiling)
    assert not timed[0].profile

    with tp.Trace() as trace:
        trace.add(*timed)
        assert timed[0].profile

    assert not timed[0].profile


def test_devices_time_nothing_unless_they_can(null: NullDevice) -> None:
    with null.open() as stream:
        assert not isinstance(stream, SupportsProfiling)


# --- traces that last longer than their streams ------------------------------------------------


def test_stream_that_takes_the_place_of_a_closed_one_has_its_track(null: NullDevice) -> None:
    trace = tp.Trace()
    with null.open() as first:
        trace.add(first)
    with null.open() as second:
        trace.add(second)

    assert tracks(trace) == [HOST, "null:0"]


def test_trace_keeps_no_stream_alive(null: NullDevice) -> None:
    trace = tp.Trace()
    stream = null.open()
    trace.add(stream)

    del stream
    gc.collect()

    assert null.children == []
    assert tracks(trace) == [HOST, "null:0"]


def test_what_a_stream_timed_is_kept_when_it_closes() -> None:
    trace = tp.Trace()
    device = NullDevice("host:0", host=True, asynchronous=True, profiling=True)
    x = tp.input("x", (4, 8), tp.F32)
    with device, device.open() as stream, tp.Scheduler([stream], trace=trace) as scheduler:
        scheduler.schedule(tp.add(x, x)).run({x: DATA})

    trace.close()

    assert names(trace, "host:0") == ["add"]


def test_a_scheduler_takes_no_spans_of_streams_that_it_did_not_wait_for(timed) -> None:
    trace = tp.Trace()
    x = tp.input("x", (4,), tp.F32)
    last = timed[-1]
    mine = tp.Scheduler([last], trace=trace)
    with NullDevice("null:9", host=True) as device, device.open() as other:
        schedule = mine.schedule(x * 2)
        schedule.run({x: np.ones(4)})
        last.synchronize()
        tp.Scheduler([other], trace=trace).synchronize()
        before = names(trace, last.name)
        mine.synchronize()
        assert len(names(trace, last.name)) > len(before)
