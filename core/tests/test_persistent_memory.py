"""Tensors that keep their values between runs, used by several streams: their order is kept.

Work of the streams is done late and in a random order (`Timeline`), so a missing wait gives a
wrong result.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.graph.graph import Graph
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline

ORDERS = range(8)
"""Seeds of the orders in which streams do their work; a missing wait shows in half of them."""
SIZE = 8
X = np.arange(1, SIZE + 1, dtype=np.float32)


def late(name: str, order: Timeline, **more: object) -> NullDevice:
    return NullDevice(name, asynchronous=True, timeline=order, **more)


def zeros(stream: Backend, name: str = "k") -> tp.Tensor:
    return stream.place(name, np.zeros(SIZE, np.float32))


def vector(name: str = "x") -> tp.Tensor:
    return tp.input(name, (SIZE,), tp.F32)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_copy_waits_for_the_stream_that_wrote_its_source(seed: int) -> None:
    order = Timeline(seed)
    first = late("a:0", order, host=True, ops=("relu",)).open()
    middle, last = late("b:0", order).open(), late("h:9", order, host=True).open()
    kept, x = zeros(last), vector()
    bias = middle.place("bias", np.ones(SIZE, np.float32), usage=tp.WEIGHTS)
    written = tp.cpy(x, kept)
    y = kept + bias
    with tp.Scheduler([first, middle, last]).schedule(y, effects=[written]) as run:
        np.testing.assert_array_equal(run.run({x: X})[y], X + 1)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_copy_waits_for_another_stream_of_the_same_device(seed: int) -> None:
    order = Timeline(seed)
    device, host = late("a:0", order), late("h:9", order, host=True).open()
    one, two = device.open(), device.open()
    kept, x = zeros(one), vector()
    written = tp.cpy(x, kept)
    y = kept * 2
    scheduler = tp.Scheduler([one, two, host])
    with scheduler.schedule(y, effects=[written], pins={written: two, y: host}) as run:
        np.testing.assert_array_equal(run.run({x: X})[y], X * 2)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_batch_reads_its_output_on_the_stream_that_wrote_it(seed: int) -> None:
    order = Timeline(seed)
    first = late("a:0", order, host=True, ops=("relu",)).open()
    second = late("b:1", order, host=True).open()
    kept, x = zeros(first), vector()
    scheduler = tp.Scheduler([first, second], parallel=True)
    with scheduler.schedule(kept, effects=[tp.cpy(x, kept)]) as run:
        np.testing.assert_array_equal(run.submit({x: X})[kept], X)


@pytest.mark.parametrize("seed", ORDERS)
def test_the_pin_of_a_view_is_one_of_its_root(seed: int) -> None:
    order = Timeline(seed)
    first, second = late("a:0", order).open(), late("b:1", order, host=True).open()
    x = vector()
    y = (x * 2)[2:6]
    with tp.Scheduler([first, second], parallel=True).schedule(y, pins={y: first}) as run:
        assert run.device_of(y.root) == "a:0"
        np.testing.assert_array_equal(run.submit({x: X})[y], X[2:6] * 2)


def test_a_view_and_its_root_cannot_have_different_pins() -> None:
    first, second = NullDevice("a:0").open(), NullDevice("b:1", host=True).open()
    y = tp.relu(vector())
    view = y[2:6]
    with pytest.raises(tp.GraphError, match=r"is pinned to b:1, and .*relu.* to a:0; pin .*relu"):
        tp.Scheduler([first, second]).schedule(view, pins={y: first, view: second})


def test_all_nodes_of_a_graph_can_be_pinned_views_too() -> None:
    first, second = NullDevice("a:0").open(), NullDevice("b:1", host=True).open()
    x = vector()
    graph = Graph(tp.relu(x[2:6] * 2)[:2])
    with tp.Scheduler([first, second]).schedule(graph, pins=dict.fromkeys(graph.nodes, first)) as y:
        assert {row.device for row in y.explain().nodes} == {"a:0"}


@pytest.mark.parametrize("seed", ORDERS)
def test_transient_inputs_of_two_schedules_do_not_share_memory_in_use(seed: int) -> None:
    stream = late("b:1", Timeline(seed), host=True).open()
    scheduler = tp.Scheduler([stream])
    x, z = vector("x"), vector("z")
    y, u = tp.relu(x * 2) * 3, tp.relu(z * 5)
    first = scheduler.schedule(y, transient=[x]).submit({x: X})
    second = scheduler.schedule(u, transient=[z]).submit({z: X})
    np.testing.assert_array_equal(first[y], X * 6)
    np.testing.assert_array_equal(second[u], X * 5)


def test_transient_inputs_wait_for_nothing_after_a_batch_that_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = late("b:1", Timeline(0), host=True).open()
    scheduler = tp.Scheduler([stream])
    x = vector()
    y = tp.relu(x * 2)
    schedule = scheduler.schedule(y, transient=[x])
    schedule.submit({x: X}).wait()
    monkeypatch.setattr(stream, "synchronize", lambda: pytest.fail("waits for all work"))

    flight = schedule.submit({x: X})

    monkeypatch.undo()
    np.testing.assert_array_equal(flight[y], X * 2)


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize("writes_first", [True, False])
def test_batches_of_two_schedules_keep_the_order_of_a_write_and_a_read(
    seed: int, writes_first: bool
) -> None:
    order = Timeline(seed)
    first = late("a:0", order, host=True, ops=("relu",)).open()
    second = late("b:1", order, host=True).open()
    kept, x = zeros(first), vector()
    scheduler = tp.Scheduler([first, second], parallel=True)
    y, written = tp.relu(kept), tp.cpy(x, kept)
    schedules = [scheduler.schedule(written), scheduler.schedule(y)]
    values: list[dict[tp.Tensor, np.ndarray]] = [{x: X}, {}]
    turns = (0, 1) if writes_first else (1, 0)
    flights = {i: schedules[i].submit(values[i]) for i in turns}
    np.testing.assert_array_equal(flights[1][y], X if writes_first else 0 * X)


def test_batches_of_two_schedules_that_only_read_do_not_wait_for_each_other() -> None:
    order = Timeline(0)
    first, second = late("a:0", order).open(), late("b:1", order, host=True).open()
    kept = zeros(second)
    scheduler = tp.Scheduler([first, second], parallel=True)
    one, two = tp.relu(kept), kept * 2
    schedules = [scheduler.schedule(y, pins={y: s}) for y, s in ((one, first), (two, second))]
    flight, _ = (schedule.submit() for schedule in schedules)
    assert not flight.done


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_over_two_kept_tensors_give_what_one_stream_gives(
    seed: int, sanitize: bool
) -> None:
    kept_alone, alone = _play(seed, lambda _: [tp.open("cpu@tensorplug-cpu")])
    kept_late, found = _play(seed, _late_streams, sanitize=sanitize)
    for a, b in zip(alone + kept_alone, found + kept_late, strict=True):
        np.testing.assert_array_equal(b, a)


def _late_streams(seed: int) -> list[Backend]:
    rng, order = random.Random(f"streams {seed}"), Timeline(seed)
    devices = []
    for i in range(rng.randint(1, 2)):
        # Another stream can write the memory of a device without cpy, if it is the host's.
        host = rng.random() < 0.4
        device = NullDevice(
            f"g{rng.randint(0, 1)}:{i}",
            asynchronous=rng.random() < 0.8,
            timeline=order,
            events=rng.choice([None, False]),
            async_copy=rng.choice([None, False]),
            host=host,
            concurrent=rng.random() < 0.3,
            ops=rng.choice([None, ("relu", "add", "scale")]) if host else None,
        )
        devices.append(device)
    return [device.open() for device in (*devices, late("h:9", order, host=True))]


def _play(
    seed: int, streams_of: Callable[[int], list[Backend]], *, sanitize: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Run and submit two random graphs six times; return the kept tensors and all results."""
    streams, rng = streams_of(seed), random.Random(seed)
    homes = random.Random(f"homes {seed}")
    kept = [zeros(homes.choice(streams), f"k{i}") for i in range(2)]
    graphs = [_random_graph(rng, kept) for _ in range(2)]
    scheduler = tp.Scheduler(streams, parallel=homes.random() < 0.5, sanitize=sanitize)
    schedules = [_planned(scheduler, graph, homes) for graph in graphs]
    results, flights = [], []
    for _ in range(6):
        schedule = rng.choice(schedules)
        values = {x: np.float32([rng.randint(-3, 3) for _ in X]) for x in schedule.graph.inputs}
        if rng.random() < 0.3:
            done = schedule.run(values)
            results.append([done[y].copy() for y in schedule.graph.outputs])
        else:
            results.append([])
            flights.append((len(results) - 1, schedule.submit(values), schedule.graph.outputs))
    for i, flight, outputs in flights:
        results[i] = [flight[y].copy() for y in outputs]
    scheduler.synchronize()
    return [tp.transfer.read(k) for k in kept], [y for run in results for y in run]


def _planned(scheduler: tp.Scheduler, graph: Graph, rng: random.Random) -> tp.Schedule:
    """The schedule with some nodes pinned, where that can be done, and some inputs transient."""
    transient = [x for x in graph.inputs if rng.random() < 0.3]
    pins = {node: rng.choice(scheduler.backends) for node in graph.nodes if rng.random() < 0.3}
    try:
        return scheduler.schedule(graph, pins=pins, transient=transient)
    except (tp.GraphError, tp.Unsupported):
        return scheduler.schedule(graph, transient=transient)


def _random_graph(rng: random.Random, kept: list[tp.Tensor]) -> Graph:
    """A few nodes over inputs and kept tensors, some of which it writes or gives as outputs."""
    values = [vector("x"), vector("z"), *kept]
    nodes: list[tp.Tensor] = []
    effects: list[tp.Tensor] = []
    for _ in range(rng.randint(2, 7)):
        whole = [v for v in values if v.shape == (SIZE,)]
        match rng.choice(["relu", "scale", "add", "view", "write", "in place"]):
            case "relu":
                made = tp.relu(rng.choice(values))
            case "scale":
                made = rng.choice(values) * float(rng.randint(1, 3))
            case "add":
                made = rng.choice(whole) + rng.choice(whole)
            case "view":
                made = rng.choice(whole)[2:6]
            case "write":
                source, target = rng.choice(whole), rng.choice(kept)
                if source.root is target:
                    continue
                effects.append(made := tp.cpy(source, target))
            case _:
                computed = [n for n in nodes if n.op in ("relu", "scale", "add") and not n.writes]
                computed = [n for n in computed if n.shape == (SIZE,)]
                if not computed:
                    continue
                effects.append(made := tp.in_place(rng.choice(computed) * 2.0))
        values.append(made)
        nodes.append(made)
    nodes = nodes or [tp.relu(values[0])]
    outputs = [node for node in nodes if rng.random() < 0.5] or nodes[-1:]
    return Graph(outputs, effects=effects)
