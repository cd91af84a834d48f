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
    assert [span.name for span in spans][-2:] == ["scale", "unary"]
    assert all(before <= span.start <= span.end <= after for span in spans)


def test_work_is_timed_only_while_it_is_traced(device, stream):
    with tp.Trace() as trace:
        trace.add(stream)
        timed = stream.profile

    assert (timed, stream.profile, list(stream.take_spans())) == (True, False, [])
