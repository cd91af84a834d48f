"""Spans that the device timed itself."""

from time import perf_counter_ns

import numpy as np

import tensorplug as tp

SLACK = 100_000_000
"""Nanoseconds by which two clocks may be set wrong on a busy machine."""


def test_trace_shows_when_kernels_ran(device, stream):
    x = tp.input("x", (64, 64), tp.F32)
    doubled = tp.scale(x, scale=2.0)
    y = tp.relu(doubled)
    before = perf_counter_ns() - SLACK
    with (
        tp.open("cpu") as cpu,
        tp.Trace() as trace,
        tp.Scheduler([stream, cpu], trace=trace) as scheduler,
        scheduler.schedule(y, pins={doubled: stream, y: stream}) as run,
    ):
        run.run({x: np.ones((64, 64), np.float32)})[y]
    after = perf_counter_ns() + SLACK

    spans = [span for span in trace.spans if span.track == stream.name]
    assert [span.name for span in spans][-3:] == ["scale", "unary", "copy"]
    assert all(before <= span.start <= span.end <= after for span in spans)


def test_inputs_in_pinned_memory_are_one_transfer(device, stream):
    x, y = tp.input("x", (3,), tp.F32), tp.input("y", (5,), tp.F32)
    total = tp.sum(x) + y
    with (
        tp.open("cpu") as cpu,
        tp.Trace() as trace,
        tp.Scheduler(
            [stream, cpu], buffer_types={cpu: device.host_buffer_type}, trace=trace
        ) as scheduler,
        scheduler.schedule(total, transient=(x, y), pins={total: stream}) as run,
    ):
        result = run.run({x: np.ones(3, np.float32), y: np.ones(5, np.float32)})[total]

    names = [span.name for span in trace.spans if span.track == stream.name]
    assert result.tolist() == [4.0] * 5
    assert names.count("copy") == 2  # all inputs there, and the result back


def test_work_is_timed_only_while_it_is_traced(device, stream):
    with tp.Trace() as trace:
        trace.add(stream)
        timed = stream.profile

    assert (timed, stream.profile, list(stream.take_spans())) == (True, False, [])
