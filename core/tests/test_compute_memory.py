"""Compute memory of schedulers: how it is laid out, and how much of it there is."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import BufferUsage
from tensorplug.graph.tensor import Tensor
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice

X = np.arange(16, dtype=np.float32).reshape(4, 4) - 5


class Remembering(NullBuffer):
    """Keeps what it is told of tensors until it is reset."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.told: dict[Tensor, int] = {}

    def init_tensor(self, tensor: Tensor, offset: int) -> None:
        self.told[tensor] = offset

    def reset(self) -> None:
        self.told.clear()


class RememberingType(NullBufferType):
    buffer_class = Remembering


class RememberingDevice(NullDevice):
    buffer_type_class = RememberingType

    def told(self) -> set[Tensor]:
        """What its compute buffers remember."""
        buffers = [child for child in self.children if isinstance(child, Remembering)]
        return {t for b in buffers if b.usage is BufferUsage.COMPUTE for t in b.told}


@pytest.fixture
def remembering() -> Iterator[RememberingDevice]:
    with RememberingDevice("gpu:0", max_size=256) as device:
        yield device


@pytest.fixture
def scheduler(remembering: RememberingDevice, host: NullDevice) -> Iterator[tp.Scheduler]:
    with tp.Scheduler([remembering.open(), host.open()]) as scheduler:
        yield scheduler


def chain(scheduler: tp.Scheduler, length: int, rows: int = 4) -> tp.Schedule:
    """`length` ops on the first device, one after the other."""
    x = tp.input("x", (rows, 4), tp.F32)
    y = x
    for _ in range(length):
        y = tp.relu(tp.add(y, y))
    first = scheduler.backends[0]
    nodes = tp.Graph(y).nodes
    return scheduler.schedule(y, pins=dict.fromkeys(nodes, first), fuse=False)


def on_device(*schedules: tp.Schedule) -> set[Tensor]:
    return {t for s in schedules for t, slot in s.planned.memory.slots.items() if slot.pool == 0}


# --- layout ------------------------------------------------------------------------------------


def test_compute_buffer_forgets_graphs_that_are_gone(
    scheduler: tp.Scheduler, remembering: RememberingDevice
) -> None:
    for length in range(8, 0, -1):
        schedule = chain(scheduler, length)
        schedule.run({schedule.graph.inputs[0]: X})

        assert remembering.told() == on_device(schedule)

        schedule.close()


def test_compute_buffer_remembers_all_graphs_that_lie_in_it(
    scheduler: tp.Scheduler, remembering: RememberingDevice
) -> None:
    schedules = [chain(scheduler, length) for length in (5, 3, 4)]
    for schedule in schedules * 2:
        schedule.run({schedule.graph.inputs[0]: X})

    assert remembering.told() == on_device(*schedules)


def test_compute_buffers_that_stay_when_others_grow_are_laid_out_again(
    scheduler: tp.Scheduler, remembering: RememberingDevice
) -> None:
    first = chain(scheduler, 2)
    second = chain(scheduler, 2, rows=16)

    assert remembering.told() == on_device(second)

    first.run({first.graph.inputs[0]: X})
    assert remembering.told() == on_device(first, second)


# --- how much there is -------------------------------------------------------------------------


class Drawn:
    """A random graph on two or three random devices, and how to schedule it."""

    OPS = ("add", "mul", "sub", "mul_mat", "relu", "cont")

    def __init__(self, seed: int, *, parallel: bool) -> None:
        chance = Random(seed)
        names = [f"gpu:{i}" for i in range(chance.randint(1, 2))]
        largest = chance.choice([1 << 40, 4096])
        self.devices = [NullDevice(name, max_size=largest) for name in names]
        self.devices.append(NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True))
        self.streams: list[tp.Backend] = [device.open() for device in self.devices]
        self.scheduler = tp.Scheduler(self.streams, parallel=parallel)
        self.inputs = [tp.input(f"x{i}", (8, 8), tp.F32) for i in range(chance.randint(1, 3))]
        self.weight = chance.choice(self.streams).place("w", np.eye(8), dtype=tp.F32)
        values = [*self.inputs, self.weight]
        for _ in range(chance.randint(1, 12)):
            op = chance.choice(self.OPS)
            a, b = chance.choice(values), chance.choice(values)
            one = op in ("relu", "cont")
            values.append(getattr(tp, op)(a) if one else getattr(tp, op)(a, b))
        self.graph = tp.Graph([values[-1], *chance.sample(values[len(self.inputs) + 1 :], 1)])
        nodes = [*self.graph.nodes, *self.graph.inputs]
        self.options: dict[str, Any] = {
            "pins": {t: chance.choice(self.streams) for t in nodes if chance.random() < 0.5},
            "transient": [t for t in self.graph.inputs if chance.random() < 0.3],
            "fuse": chance.random() < 0.7,
        }
        self._before = self.used()

    def used(self) -> dict[str, int]:
        return {device.name: device.used for device in self.devices}

    def grown(self) -> dict[str, int]:
        """Bytes that devices have given since the beginning."""
        used = self.used()
        return {name: used[name] - was for name, was in self._before.items() if used[name] != was}

    def counted(self) -> dict[str, int]:
        sizes = {stream.name: self.scheduler.buffer_size(stream) for stream in self.streams}
        return {name: size for name, size in sizes.items() if size}

    def feed(self) -> dict[Tensor, Any]:
        return dict.fromkeys(self.graph.inputs, np.ones((8, 8)))

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in self.devices:
            device.close(force=True)


@pytest.fixture(params=[False, True], ids=["one batch", "four batches"])
def drawn(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Drawn]]:
    made: list[Drawn] = []

    def draw(seed: int) -> Drawn:
        made.append(Drawn(seed, parallel=request.param))
        return made[-1]

    yield draw
    for each in made:
        each.close()


SEEDS = pytest.mark.parametrize("seed", range(30))


@SEEDS
def test_what_is_reserved_is_all_that_schedules_of_the_graph_allocate(
    seed: int, drawn: Callable[[int], Drawn]
) -> None:
    each = drawn(seed)
    expected = each.scheduler.sizes(each.graph, **each.options)

    each.scheduler.reserve(each.graph, **each.options)
    assert each.grown() == each.counted() == expected

    for _ in range(2):
        with each.scheduler.schedule(each.graph, **each.options) as schedule:
            schedule.run(each.feed())
            for _ in range(6):
                schedule.submit(each.feed())
            assert each.grown() == each.counted() == expected
        assert each.grown() == each.counted() == expected
    each.scheduler.release()
    assert each.grown() == each.counted() == {}


@SEEDS
def test_schedule_that_is_not_reserved_allocates_what_sizes_say(
    seed: int, drawn: Callable[[int], Drawn]
) -> None:
    each = drawn(seed)

    schedule = each.scheduler.schedule(each.graph, **each.options)

    assert each.grown() == each.counted() == each.scheduler.sizes(each.graph, **each.options)
    schedule.close()
    each.scheduler.release()
    assert each.grown() == {}


@SEEDS
def test_graph_fits_devices_of_the_sizes_it_is_said_to_need_and_no_smaller_ones(
    seed: int, drawn: Callable[[int], Drawn]
) -> None:
    each = drawn(seed)
    sizes = each.scheduler.sizes(each.graph, **each.options)
    used = each.used()
    for device in each.devices:
        device._total = used[device.name] + sizes.get(device.name, 0)
    full = next(device for device in each.devices if device.name in sizes)
    full._total -= 1

    with pytest.raises(tp.OutOfMemory):
        each.scheduler.reserve(each.graph, **each.options)
    each.scheduler.release()
    assert each.grown() == {}

    full._total += 1
    each.scheduler.reserve(each.graph, **each.options)
    each.scheduler.schedule(each.graph, **each.options).run(each.feed())


def test_batches_of_all_schedules_share_memory_for_transient_inputs_and_copies(
    remembering: RememberingDevice, host: NullDevice
) -> None:
    streams = [remembering.open(), host.open()]
    with tp.Scheduler(streams, parallel=True) as scheduler:

        def schedule(rows: int) -> tp.Schedule:
            x = tp.input("x", (rows, 4), tp.F32)
            y = tp.relu(x)
            pins = {x: streams[1], y: streams[0]}
            return scheduler.schedule(y, pins=pins, transient=[x])

        largest = schedule(16)
        size = [scheduler.buffer_size(stream) for stream in streams]
        others = [schedule(rows) for rows in (1, 3, 5, 16)]
        for run in (*others, largest):
            run.submit({run.graph.inputs[0]: np.ones(run.graph.inputs[0].shape)})

        assert [scheduler.buffer_size(stream) for stream in streams] == size


@pytest.mark.parametrize("order", [1, -1])
def test_smaller_graphs_fit_what_is_reserved_for_the_largest(
    order: int, remembering: RememberingDevice, host: NullDevice
) -> None:
    streams = [remembering.open(), host.open()]
    with tp.Scheduler(streams, parallel=True) as scheduler:
        xs = [tp.input("x", (rows, 4), tp.F32) for rows in (2, 8, 4, 16)]
        graphs = [tp.Graph(tp.relu(x)) for x in xs]
        pins = dict.fromkeys(xs, streams[0])
        for graph in graphs[::order]:
            scheduler.reserve(graph, pins=pins)
        size = [scheduler.buffer_size(stream) for stream in streams]

        for graph in graphs:
            scheduler.schedule(graph, pins=pins).close()

            assert [scheduler.buffer_size(stream) for stream in streams] == size
