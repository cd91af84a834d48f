"""Devices behind actors of a cluster on this machine."""

import gc
import threading
import time

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Part
from tensorplug.device.moving import copy_bytes
from tensorplug.dtypes import IQ1_S
from tensorplug.errors import DeviceError, FormatError, GraphError, OptionError
from tensorplug.gguf import FileTensor, TensorFile, load_weights, map_file
from tensorplug_ray import cluster as actors
from tensorplug_ray.identity import check_alike, identity
from tensorplug_ray.stream import RayBackend
from tensorplug_ray.worker import SMALL, Worker, packed, unpacked


@pytest.fixture(scope="module")
def devices(cluster):
    return cluster("cpu?threads=1", "cpu?threads=1")


@pytest.fixture
def stream(devices):
    with devices[0].open() as stream:
        yield stream


def layers(rng, *streams):
    """A line of products, each with its weights on the next of `streams`."""
    x = tp.input("x", (3, 32), tp.F32)
    y = x
    for i in range(6):
        w = rng.standard_normal((32, 32), dtype=np.float32) / 6
        home = streams[i * len(streams) // 6]
        y = tp.relu(y @ home.place(f"w{i}", w, usage=tp.WEIGHTS).T)
    return x, y


def test_numbers_equal_those_of_the_local_device(devices):
    values = np.random.default_rng(1).standard_normal((3, 32), dtype=np.float32)
    found = []
    with devices[0].open() as a, devices[1].open() as b, tp.open("cpu?threads=1") as local:
        for streams in ((local,), (a,), (a, b)):
            x, y = layers(np.random.default_rng(2), *streams)
            with tp.Scheduler(list(dict.fromkeys((*streams, local)))).schedule(y) as run:
                found.append(run.run({x: values})[y])

    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_run_whose_memory_was_freed_is_an_error_and_ends_no_actor(stream):
    x = tp.input("x", (64,), tp.F32)
    y = tp.relu(x)
    kind = stream.device.buffer_type
    with kind.alloc(256) as source, kind.alloc(256) as result:
        places = {x: tp.Place(source, 0), y: tp.Place(result, 0)}
        with stream.plan(Part.of(tp.Graph(y), tp.Bindings(places))) as plan:
            stream.device.link.call("free", result.number)  # `close` would wait for the stream

            plan.run()

            with pytest.raises(FormatError, match="which it uses, was freed"):
                stream.synchronize()
            assert not stream.device.link.lost


def test_run_with_its_result_is_one_call(stream):
    x, y = layers(np.random.default_rng(2), stream)
    with tp.Scheduler([stream]).schedule(y) as run:
        run.run({x: np.ones((3, 32), np.float32)})[y]
        before = stream.device.link.calls
        run.run()[y]

        assert stream.device.link.calls == before + 1


def test_questions_of_equal_structure_are_asked_once(stream):
    layers_now = layers(np.random.default_rng(2), stream)[1]
    with tp.Scheduler([stream]).schedule(layers_now):
        asked = stream.device.questions.asked
    again = layers(np.random.default_rng(3), stream)[1]
    with tp.Scheduler([stream]).schedule(again):
        pass

    assert stream.device.questions.asked == asked


def test_function_of_this_process_is_refused_with_the_reason(devices):
    node = tp.map_custom1(tp.input("x", (4,), tp.F32), lambda a: a)

    refusal = devices[0].refuses(node)

    assert refusal is not None
    assert "calls a Python function, which cannot be packed" in refusal.reason


def test_refusal_of_the_far_device_has_its_reason(devices):
    node = tp.cast(tp.input("x", (2, 256), tp.F32), IQ1_S)

    assert devices[0].refuses(node).reason == "ray:0: cpu:0: dup: no encoder for iq1_s"


def test_thread_that_sends_late_work_goes_on_after_an_error_of_any_kind(stream):
    w = stream.place("w", np.zeros(4, np.float32))
    sent = threading.Event()

    def fails(*args):
        sent.set()
        raise ValueError("as the test planned")

    stream._send = fails
    tp.transfer.write_async(stream, w, np.ones(4, np.float32))
    assert sent.wait(30)
    with pytest.raises(DeviceError, match="ray:0: ValueError: as the test planned"):
        stream.synchronize()

    sent.clear()
    stream._send = lambda *args: (RayBackend._send(stream, *args), sent.set())
    tp.transfer.write_async(stream, w, np.ones(4, np.float32))

    assert sent.wait(30)


def test_stream_goes_on_after_an_answer_that_does_not_fit(stream):
    w = stream.place("w", np.ones(4, np.float32))
    out = np.zeros(4, np.float32)
    tp.transfer.read_async(stream, w, out)
    stream._outs.append(memoryview(bytearray(4)))  # host memory for more than the actor sends

    with pytest.raises(DeviceError, match="ray:0: ValueError: "):
        stream.synchronize()

    tp.transfer.read_async(stream, w, out)
    stream.synchronize()
    assert out.tolist() == [1, 1, 1, 1]


def test_work_that_nobody_waits_for_is_sent_all_the_same(stream):
    w = stream.place("w", np.zeros(4, np.float32))
    sent = threading.Event()
    stream._send = lambda *args: (RayBackend._send(stream, *args), sent.set())

    tp.transfer.write_async(stream, w, np.ones(4, np.float32))

    assert sent.wait(30)
    stream.synchronize()
    assert tp.transfer.read(w).tolist() == [1, 1, 1, 1]


def test_write_of_several_pieces_arrives_whole(stream, monkeypatch):
    monkeypatch.setattr("tensorplug_ray.stream.PIECE", 8)
    w = stream.place("w", np.zeros(5, np.float32))

    tp.transfer.write_async(stream, w, np.arange(5, dtype=np.float32))

    stream.synchronize()
    assert tp.transfer.read(w).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [3, 3 * SMALL])
def test_few_bytes_and_many_are_read_in_order(stream, count):
    data = [np.full(count, number, np.float32) for number in (1, 2)]
    outs = [np.zeros(count, np.float32) for _ in data]
    for array, out in zip(data, outs, strict=True):
        tp.transfer.read_async(stream, stream.place("w", array), out)

    stream.synchronize()

    np.testing.assert_array_equal(outs, data)


@pytest.mark.parametrize(
    "order",
    [b"\xc1", b"\x01", b"\x93\x01", packed(1, [7], 0), packed(1, [()], 0), packed(1, [], 1 << 40)],
)
def test_damaged_commands_are_refused(order):
    with pytest.raises(FormatError, match=f"commands of {len(order)} bytes: are damaged"):
        unpacked(order)


def test_error_of_queued_work_is_raised_once_and_the_stream_goes_on(stream):
    table = stream.place("table", np.ones((4, 8), np.float32))
    ids = stream.place("ids", np.array([77], np.int32))
    out = stream.place("out", np.zeros((1, 8), np.float32))
    rows = tp.get_rows(table, ids)
    with stream.plan(Part((rows,), tp.Bindings({rows: out.place}))) as plan:
        plan.run()
        with pytest.raises(GraphError, match="77"):
            stream.synchronize()
        stream.synchronize()

        tp.transfer.write(ids, np.array([3], np.int32))
        plan.run()
        stream.synchronize()

    assert tp.transfer.read(out).sum() == 8


@pytest.fixture
def stored(tmp_path):
    """A file with one tensor, and what is in it."""
    data = np.random.default_rng(5).standard_normal((64, 32), dtype=np.float32)
    path = tmp_path / "model.raw"
    path.write_bytes(bytes(64) + data.tobytes())
    file = TensorFile(*map_file(path, "raw"))
    file.tensors = {"w": FileTensor("w", tp.F32, (32, 64, 1, 1), 2, 64, data.nbytes)}
    with file:
        yield file, data


def test_weights_are_read_by_the_actor_from_its_own_file(devices, stored):
    file, data = stored
    posted = []
    link = devices[0].link
    link.post = lambda *args, **options: posted.append(args)
    try:
        with load_weights(file, {"w": devices[0]}) as weights:
            found = tp.transfer.read(weights.tensors["w"])
    finally:
        del link.post

    assert np.array_equal(found, data)
    assert posted == []


def test_weights_are_sent_where_the_node_has_no_such_file(devices, stored, tmp_path):
    file, data = stored
    (tmp_path / "model.raw").unlink()

    with load_weights(file, {"w": devices[0]}) as weights:
        assert np.array_equal(tp.transfer.read(weights.tensors["w"]), data)


def test_unlike_versions_are_refused_with_both_named():
    here = identity()

    with pytest.raises(DeviceError, match=r"box has tensorplug 9\.9, this machine has tensorplug"):
        check_alike("ray:0", here, {**here, "tensorplug": "9.9"}, "box")


def test_actor_of_a_node_without_a_token_is_refused(cluster, monkeypatch):
    class Open(Worker):
        def identify(self):
            found, node = super().identify()
            return {**found, "authentication": "disabled"}, node

    monkeypatch.setattr(actors, "Worker", Open)

    with pytest.raises(OptionError, match=r"asks for no token \(RAY_AUTH_MODE is disabled there"):
        cluster("cpu?threads=1")


def test_actor_with_other_versions_opens_no_device(cluster, monkeypatch, tmp_path):
    opened = tmp_path / "opened"

    class Old(Worker):
        def identify(self):
            found, node = super().identify()
            return {**found, "tensorplug": "0.1"}, node

        def open(self, spec):
            opened.touch()
            return super().open(spec)

    monkeypatch.setattr(actors, "Worker", Old)

    with pytest.raises(DeviceError, match=r"ray:0: .* has tensorplug 0\.1, this machine"):
        cluster("cpu?threads=1")
    assert not opened.exists()


@pytest.mark.parametrize("where", ["__init__", "identify"])
def test_error_that_ray_tells_of_is_the_line_that_says_what_is_wrong(cluster, monkeypatch, where):
    class Broken(Worker):
        """An actor of a node on which a module is missing."""

    def fails(self):
        raise ModuleNotFoundError("No module named 'attic'")

    setattr(Broken, where, fails)
    monkeypatch.setattr(actors, "Worker", Broken)

    with pytest.raises(DeviceError, match=r"ray:0: .*NotFoundError: No module named 'attic'$"):
        cluster("cpu?threads=1")


def test_device_that_does_not_open_leaves_no_actor_of_the_others(cluster):
    before = alive()

    with pytest.raises(DeviceError, match=r"ray:1: .* cannot open 'attic:0': .* no installed"):
        cluster("cpu?threads=1", "attic:0")

    until = time.monotonic() + 60  # Ray ends them when it comes to it, and those of earlier tests
    while not alive() <= before:
        assert time.monotonic() < until


def alive():
    """The ids of the actors that run in the cluster."""
    import ray

    actors = ray._private.state.actors().items()
    return {name for name, actor in actors if actor["State"] == "ALIVE"}


def test_error_of_a_copy_between_actors_is_that_of_the_end_that_failed(devices):
    with devices[0].buffer_type.alloc(64) as here, devices[1].buffer_type.alloc(64) as there:
        devices[0].link.call("free", here.number)

        with pytest.raises(FormatError, match=r"buffer .* is not open here") as caught:
            copy_bytes(tp.Place(here, 0), tp.Place(there, 0), 64)

        assert caught.value.devices[0] is devices[0]


def test_unknown_buffer_is_refused_by_the_actor(devices):
    with pytest.raises(FormatError, match="buffer 12345678 is not open here"):
        devices[0].link.call("read", 12345678, 0, 4)


def test_closing_leaves_nothing_in_the_actor(devices):
    link = devices[1].link
    gc.collect()  # memory of earlier tests
    before = link.call("counts")
    with devices[1].open() as stream:
        x, y = layers(np.random.default_rng(2), stream)
        with tp.Scheduler([stream]) as scheduler, scheduler.schedule(y) as run:
            run.run({x: np.ones((3, 32), np.float32)})[y]
        for tensor in run.graph.leafs:
            if tensor.place is not None:
                tensor.place.buffer.close()

    assert link.call("counts") == before
