"""Pipelines: how much of their time devices work side by side, as the trace shows it.

Time is made up. Each job takes as long as a table says; it starts when its stream is free, what it
waits for is there, and the host has queued it. The host is late only where it waits for a device.
So figures are exact, on any machine: one unit is what a stage computes for one batch.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceSpan
from tensorplug_testing.null import NullBackend, NullDevice
from tensorplug_testing.timeline import NullEvent, Timeline

UNIT = 1_000
NODES = 4
"""Nodes of a stage."""
BATCHES = 8
X = np.arange(8, dtype=np.float32).reshape(2, 4)
LACKS = ["nothing", "events", "async_transfer", "async_copy"]


class Clock:
    """The time of the host."""

    now = 0


class PacedEvent(NullEvent):
    """A mark that is reached at `time`: a waiting thread continues at that time or later."""

    time = 0
    clock: Clock

    def synchronize(self) -> None:
        super().synchronize()
        self.clock.now = max(self.clock.now, self.time)


class Paced(NullBackend):
    """A stream that tells when its jobs would be done if each took its time."""

    profile = False

    def __init__(self, device: NullDevice, clock: Clock) -> None:
        super().__init__(device)
        self.clock = clock
        self.free = 0
        self._spans: list[DeviceSpan] = []

    def queue(self, what: str, job: Callable[[], None], after: NullEvent | None = None) -> None:
        awaited = after.time if isinstance(after, PacedEvent) else 0
        start = max(self.clock.now, self.free, awaited)
        self.free = start + (UNIT // NODES if what == "scale" else 0)
        if self.free > start:
            self._spans.append(DeviceSpan(what, start, self.free))
        super().queue(what, job, after)

    def mark(self) -> NullEvent:
        event = PacedEvent(self._stream, self.device.family)
        event.time, event.clock = self.free, self.clock
        return event

    def take_spans(self) -> Sequence[DeviceSpan]:
        taken, self._spans = self._spans, []
        return taken


def paced(device: NullDevice, clock: Clock) -> NullDevice:
    device.backend_class = partial(type("", (Paced, device.backend_class), {}), clock=clock)
    return device


class Pipeline:
    """A stage for each device, then the host, which only holds the inputs."""

    def __init__(self, *devices: NullDevice) -> None:
        clock = Clock()
        host = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.names = [device.name for device in devices]
        self.devices = [*(paced(device, clock) for device in devices), host]
        self.streams = [device.open() for device in self.devices]
        self.trace = tp.Trace()
        self.x = self.y = tp.input("x", X.shape, tp.F32)
        pins: dict[tp.Tensor, tp.Backend] = {}
        for stream in self.streams[:-1]:
            for _ in range(NODES):
                self.y = tp.scale(self.y, 2.0)
                pins[self.y] = stream
        self.scheduler = tp.Scheduler(self.streams, parallel=True, trace=self.trace, sanitize=True)
        self.plan = self.scheduler.schedule(self.y, pins=pins)

    def submit(self) -> None:
        """Put all batches in flight, as they find a place, and look at what they give."""
        flying = [self.plan.submit({self.x: X + i}) for i in range(BATCHES)]
        self.check([batch[self.y] for batch in flying])

    def run(self) -> None:
        """One batch at a time."""
        self.check([self.plan.run({self.x: X + i})[self.y] for i in range(BATCHES)])

    def check(self, found: list[Any]) -> None:
        factor = 2.0 ** (NODES * len(self.names))
        for i, value in enumerate(found):
            np.testing.assert_array_equal(value, factor * (X + i))
        self.scheduler.synchronize()

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """Device, begin and end of all that the devices did, in quarters of units."""
        quarter = UNIT // NODES
        return [
            (s.track, s.start // quarter, s.end // quarter)
            for s in self.trace.spans
            if s.track in self.names
        ]

    @property
    def units(self) -> float:
        """From the first work to the last."""
        return (max(end for _, _, end in self.spans) - min(s for _, s, _ in self.spans)) / NODES

    @property
    def side_by_side(self) -> float:
        """Units in which two devices or more work."""
        moments = [m for _, start, end in self.spans for m in range(start, end)]
        return sum(moments.count(m) > 1 for m in set(moments)) / NODES

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in self.devices:
            device.close(force=True)


@pytest.fixture
def pipeline() -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []

    def make(*devices: NullDevice) -> Pipeline:
        made.append(Pipeline(*devices))
        return made[-1]

    yield make
    for each in made:
        each.close()


def late(name: str, lacks: str = "nothing", **options: Any) -> NullDevice:
    without = {} if lacks == "nothing" else {lacks: False}
    return NullDevice(name, asynchronous=True, timeline=Timeline(), **without, **options)


def test_one_batch_at_a_time_never_has_two_devices_at_work(pipeline) -> None:
    line = pipeline(late("late:0"), late("late:1"))

    line.run()

    assert (line.units, line.side_by_side) == (2 * BATCHES, 0)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_devices_of_one_kind_are_all_at_work_once_the_pipeline_is_full(pipeline, stages) -> None:
    line = pipeline(*(late(f"late:{i}") for i in range(stages)))

    line.submit()

    assert line.units == BATCHES + stages - 1
    assert line.side_by_side == BATCHES + stages - 3


@pytest.mark.parametrize("first", LACKS)
@pytest.mark.parametrize(
    ("second", "lacks", "units"),
    [
        ("late:1", "nothing", BATCHES + 1),
        ("late:1", "events", BATCHES + 1),
        ("late:1", "async_copy", BATCHES + 1),
        ("late:1", "async_transfer", 2 * BATCHES),  # results are read before the next batch
        ("other:0", "nothing", BATCHES + 1),
        ("other:0", "events", BATCHES + 2),  # every fourth batch waits for all before it
        ("other:0", "async_copy", BATCHES + 1),
        ("other:0", "async_transfer", 2 * BATCHES),
    ],
)
def test_two_stages_work_side_by_side_whatever_the_first_lacks(
    pipeline, first: str, second: str, lacks: str, units: int
) -> None:
    line = pipeline(late("late:0", first), late(second, lacks))

    line.submit()

    assert line.units == units
    assert line.side_by_side == 2 * BATCHES - units


def test_device_in_host_memory_works_beside_a_late_one_without_events(pipeline) -> None:
    line = pipeline(NullDevice("host:0", host=True), late("late:0", "events"))

    line.submit()

    assert [name for name, _, _ in line.spans].count("late:0") == NODES * BATCHES
    assert line.units <= BATCHES + 2


def test_four_batches_are_in_flight_at_most(pipeline) -> None:
    line = pipeline(late("late:0"), late("late:1"))

    flying = [line.plan.submit({line.x: X}) for _ in range(4)]
    before = line.devices[0].computed
    flying.append(line.plan.submit({line.x: X}))

    assert before == []
    assert line.devices[1].computed[:NODES] == ["scale"] * NODES
    assert [batch.done for batch in flying] == [True, False, False, False, False]


def test_output_that_is_named_twice_is_read_once(late: NullDevice) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    with late.open() as stream, tp.Scheduler([stream], parallel=True) as scheduler:
        flight = scheduler.schedule([y, y]).submit({x: np.ones((4, 4), np.float32)})

        result = flight[y]

    np.testing.assert_array_equal(result, np.ones((4, 4)))
    assert [entry.what for entry in late.log].count("read") == 1


def test_batch_that_was_waited_for_is_used_again_before_another_is_planned() -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = x * 2
    with tp.open("cpu") as cpu, tp.Scheduler([cpu], parallel=True) as scheduler:
        plan = scheduler.schedule(y)
        for i in range(3):
            plan.submit({x: np.full((4, 4), i, np.float32)})[y]

        assert [bool(batch.plans) for batch in plan._batches] == [True, False, False, False]
