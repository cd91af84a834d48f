"""Two devices at work at once: a network cut in two stages, one batch at a time and then in flight.

The first layers run on the first device, the others on the second; where to cut is measured, so
that both stages take about as long, unless `--first` says it. Prints seconds, the share of the
time in which each device works and that in which both do, of the quickest of several runs. The
picture shows both with one time scale: a track for each device, a box for each batch, an arrow for
each copy.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug.device import Backend, SupportsProfiling, SupportsThreads

WARM = 4
"""Batches before those that count: each place in flight makes its plans once."""
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa7711")
WIDTH, LEFT, ROW, GAP = 960, 84, 34, 26
"""Pixels of the picture, of its names, of a track, and between two runs."""

Span = tuple[int, int]
"""From when to when, in nanoseconds."""


@dataclass(frozen=True)
class Stage:
    """What one device did: for each batch from its copy to its last kernel, and each piece."""

    batches: list[Span]
    pieces: list[Span]


@dataclass(frozen=True)
class Measured:
    """One way to run all batches."""

    name: str
    seconds: float
    stages: list[Stage]
    trace: tp.Trace

    @property
    def span(self) -> Span:
        """From the first work to the last."""
        pieces = [piece for stage in self.stages for piece in stage.pieces]
        return min(start for start, _ in pieces), max(end for _, end in pieces)

    def report(self) -> dict[str, object]:
        start, end = self.span
        busy = [stage.pieces for stage in self.stages]
        return {
            "seconds": round(self.seconds, 4),
            "busy": [round(total(merged(pieces)) / (end - start), 3) for pieces in busy],
            "both_busy": round(total(common(*map(merged, busy))) / (end - start), 3),
        }


# --- spans -------------------------------------------------------------------------------------


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same times without overlaps, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The times that are in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return [(start, end) for start, end in pairs if start < end]


def total(spans: Sequence[Span]) -> int:
    return sum(end - start for start, end in spans)


def stage_of(trace: tp.Trace, stream: Backend, batches: int) -> Stage:
    """What `stream` did for the last `batches`: the same number of spans for each.

    A stream that times its own work says when; of another one it is the host's time that counts.
    """
    timed = isinstance(stream, SupportsProfiling)
    spans = [s for s in trace.spans if s.track == stream.name and (timed or "nodes" in s.facts)]
    each = len(spans) // (batches + WARM)
    chunks = [spans[i * each : (i + 1) * each] for i in range(WARM, WARM + batches)]
    return Stage(
        [(chunk[0].start, max(s.end for s in chunk)) for chunk in chunks],
        [(s.start, s.end) for chunk in chunks for s in chunk],
    )


# --- work --------------------------------------------------------------------------------------


def layers(x: tp.Tensor, weights: Sequence[tp.Tensor]) -> tp.Tensor:
    for w in weights:
        x = tp.relu(tp.mul_mat(w, x))
    return x


def random_weights(stream: Backend, width: int, count: int) -> list[tp.Tensor]:
    data = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    scaled = data / np.float32(np.sqrt(width))
    return [stream.place(f"w{i}", scaled, usage=tp.WEIGHTS) for i in range(count)]


def seconds_of_a_layer(stream: Backend, last: Backend, rows: int, width: int) -> float:
    x = tp.input("x", (rows, width), tp.F32)
    y = layers(x, random_weights(stream, width, 4))
    data = np.ones((rows, width), np.float32)
    with tp.Scheduler(list(dict.fromkeys([stream, last]))) as scheduler:
        plan = scheduler.schedule(y)
        times = []
        for _ in range(4):
            start = time.perf_counter()
            plan.run({x: data})[y]
            times.append(time.perf_counter() - start)
    return min(times) / 4


def one_by_one(plan: tp.Schedule, inputs: Iterator[dict[tp.Tensor, np.ndarray]]) -> list[object]:
    (y,) = plan.graph.outputs
    return [plan.run(given)[y] for given in inputs]


def in_flight(plan: tp.Schedule, inputs: Iterator[dict[tp.Tensor, np.ndarray]]) -> list[object]:
    (y,) = plan.graph.outputs
    flying = [plan.submit(given) for given in inputs]
    return [batch[y] for batch in flying]


def measured(
    name: str,
    streams: Sequence[Backend],
    graph: tuple[tp.Tensor, tp.Tensor],
    batches: int,
    run: Callable[[tp.Schedule, Iterator[dict[tp.Tensor, np.ndarray]]], list[object]],
) -> Measured:
    """Run the batches; `streams` are the two stages', and the host's if that is another."""
    x, y = graph
    given = [np.full(x.shape, i + 1, np.float32) for i in range(batches)]
    with tp.Trace() as trace:
        # The device before the host: what has no weights goes where the last weights were.
        order = sorted(streams, key=lambda s: s.buffer_type.is_host)
        with tp.Scheduler(order, parallel=run is in_flight, trace=trace) as scheduler:
            plan = scheduler.schedule(y)
            run(plan, ({x: given[0]} for _ in range(WARM)))
            start = time.perf_counter()
            run(plan, ({x: data} for data in given))
            seconds = time.perf_counter() - start
            scheduler.synchronize()
    return Measured(name, seconds, [stage_of(trace, s, batches) for s in streams[:2]], trace)


# --- the picture -------------------------------------------------------------------------------


def picture(runs: Sequence[Measured], names: Sequence[str]) -> str:
    """Both runs as SVG, on one time scale."""
    longest = max(run.span[1] - run.span[0] for run in runs)
    scale = (WIDTH - LEFT - 16) / longest
    height = GAP + len(runs) * (len(names) * (ROW + 10) + 2 * GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="head" markerWidth="7" markerHeight="7" refX="6" refY="3.5" '
        'orient="auto"><path d="M0,0.5 L7,3.5 L0,6.5 z"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    top = GAP
    for run in runs:
        lines += drawn(run, names, top, scale)
        top += len(names) * (ROW + 10) + 2 * GAP
    return "\n".join([*lines, "</svg>", ""])


def drawn(run: Measured, names: Sequence[str], top: int, scale: float) -> list[str]:
    """One run: its title, a track for each device, and the copies between them."""
    begin, end = run.span
    both = run.report()["both_busy"]
    took = (end - begin) / 1e6
    lines = [
        f'<text x="{LEFT}" y="{top}" font-weight="bold">{run.name}: {took:.0f} ms, '
        f"both at work {both:.0%} of the time</text>"
    ]

    def at(moment: int) -> float:
        return round(LEFT + (moment - begin) * scale, 1)

    tops = [top + 10 + i * (ROW + 10) for i in range(len(names))]
    for name, y, stage in zip(names, tops, run.stages, strict=True):
        middle = y + ROW / 2 + 4
        lines.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{name}</text>')
        lines.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 16}" height="{ROW}" fill="#eeeeee"/>'
        )
        for i, (start, stop) in enumerate(stage.batches):
            left, wide = at(start), round((stop - start) * scale, 1)
            lines.append(
                f'<rect x="{left}" y="{y}" width="{wide}" height="{ROW}" stroke="white" '
                f'fill="{COLOURS[i % len(COLOURS)]}"><title>batch {i + 1} on {name}: '
                f"{(stop - start) / 1e6:.2f} ms</title></rect>"
            )
            lines.append(
                f'<text x="{left + wide / 2:.1f}" y="{middle}" fill="white" '
                f'text-anchor="middle">{i + 1}</text>'
            )
    first, second = run.stages
    lines += [
        f'<line x1="{at(a)}" y1="{tops[0] + ROW}" x2="{at(b)}" y2="{tops[1]}" stroke="black" '
        'marker-end="url(#head)"/>'
        for (_, a), (b, _) in zip(first.batches, second.batches, strict=True)
    ]
    return lines


# --- the command -------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("devices", nargs="*", default=["cpu", "opencl:0"], help="two devices")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--first", type=int, help="layers of the first device (measured)")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of devices that are the processor")
    parser.add_argument("--trace", type=Path, help="where to write the trace of the second run")
    parser.add_argument("--svg", type=Path, help="where to draw both runs")
    given = parser.parse_args()
    if len(given.devices) != 2:
        parser.error(f"two devices are needed, not {len(given.devices)}")
    return given


def main() -> None:
    given = arguments()
    tp.load_all()
    streams = [tp.open(name) for name in given.devices]
    if streams[0].name == streams[1].name:
        raise SystemExit(f"{streams[0].name} is given twice; two devices are needed")
    for stream in streams:
        if isinstance(stream, SupportsThreads):
            stream.threads = given.threads
    host = next((s for s in streams if s.buffer_type.is_host), None) or tp.open("cpu")
    first = given.first
    if first is None:
        cost = [seconds_of_a_layer(s, host, given.rows, given.width) for s in streams]
        wanted = round(given.layers * cost[1] / sum(cost))
        first = min(max(wanted, 1), given.layers - 1)
    x = tp.input("x", (given.rows, given.width), tp.F32)
    middle = layers(x, random_weights(streams[0], given.width, first))
    y = layers(middle, random_weights(streams[1], given.width, given.layers - first))

    run = partial(
        measured,
        streams=[*dict.fromkeys([*streams, host])],
        graph=(x, y),
        batches=given.batches,
    )
    ways = {"one batch at a time": one_by_one, "batches in flight": in_flight}
    runs = [
        min((run(name, run=way) for _ in range(given.repeats)), key=lambda done: done.seconds)
        for name, way in ways.items()
    ]
    if given.trace is not None:
        runs[1].trace.save(given.trace)
    names = [stream.name for stream in streams]
    if given.svg is not None:
        given.svg.write_text(picture(runs, names), encoding="utf-8")
    serial, parallel = (run.report() for run in runs)
    facts = {"devices": names, "layers": [first, given.layers - first], "batches": given.batches}
    print(json.dumps({**facts, "serial": serial, "parallel": parallel}))


if __name__ == "__main__":
    main()
