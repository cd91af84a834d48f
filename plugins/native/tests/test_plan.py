"""Plans: one program where all nodes have kernels, NumPy in between, bound again, stopped."""

import gc
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.dtypes import Q8_K
from tensorplug.errors import Aborted, Closed
from tensorplug_native.pool import Pool
from tensorplug_testing.running import bind, run

TASKS = Path("/proc/self/task")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 64)).astype(np.float32)


def chain(n):
    """`n` nodes that each add 1."""
    x = tp.input("x", (4, 64), tp.F32)
    node = x
    for _ in range(n):
        node = node + 1.0
    return x, node


def parts(plan):
    """For each part of a plan whether it is a program, and the ops of its nodes."""
    return [(p.program is not None, *(n.op for n in p.nodes)) for p in plan._stretches]


# --- what runs where ------------------------------------------------------------------------


def test_nodes_with_kernels_are_one_program_and_numpy_computes_the_others(device, backend):
    x = tp.input("x", (4, 64), tp.F32)
    node = tp.soft_max(tp.roll(tp.rms_norm(x) * x, 1, -1))
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: X})

    with backend.plan(tp.Part.of(graph, bindings)) as plan:
        found = parts(plan)
        plan.run()

    assert found == [(True, "rms_norm", "mul"), (False, "roll"), (True, "soft_max")]
    values = np.roll(X * X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-6), 1, 1)
    wanted = np.exp(values - values.max(1, keepdims=True))
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(transfer.read(node, bindings), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.skipif(not TASKS.is_dir(), reason="the system does not list threads")
@pytest.mark.parametrize(("rows", "wakes"), [(1, False), (2000, True)])
def test_a_few_rows_of_a_table_wake_no_threads(device, rows, wakes):
    table, ids = tp.input("table", (8, 64), tp.F32), tp.input("ids", (rows,), tp.I32)
    values = {table: RNG.normal(size=(8, 64)).astype(np.float32), ids: np.arange(rows) % 8}
    with device.open(threads=3) as stream:
        before = len(list(TASKS.iterdir()))

        found = run(stream, tp.get_rows(table, ids), values)

        assert (len(list(TASKS.iterdir())) > before) == wakes
    np.testing.assert_array_equal(found, values[table][values[ids]])


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda x: tp.rope(x, tp.input("at", (3,), tp.I32), dims=8, mode="mrope"), "rope"),
        (lambda x: tp.add(tp.cast(x, tp.Q8_0), x), "add"),
        (lambda x: tp.mul_mat(tp.input("w", (5, 256), Q8_K), x), "mul_mat"),
        (lambda x: tp.rms_norm(x.T), "rms_norm"),
    ],
    ids=["mode", "type", "weights", "layout"],
)
def test_what_a_kernel_cannot_do_is_left_to_numpy(device, backend, make, op):
    shape = (3, 2, 8) if op == "rope" else (3, 256)
    node = make(tp.input("x", shape, tp.F32)) if op != "rope" else None
    if node is None:
        at = tp.input("at", (12,), tp.I32)
        x = tp.input("x", shape, tp.F32)
        node = tp.rope(x, at, dims=8, mode="mrope", sections=(2, 1, 1, 0))
    graph = tp.Graph([], effects=[node]) if node.writes else tp.Graph(node)

    with backend.plan(tp.Part.of(graph, bind(device, graph, {}))) as plan:
        assert parts(plan)[-1] == (False, op)


def test_a_row_number_outside_its_table_stops_the_run(device, backend):
    table, ids = tp.input("table", (5, 32), tp.F32), tp.input("ids", (3,), tp.I32)
    node = tp.get_rows(table, ids)
    values = {table: np.ones((5, 32), np.float32), ids: np.array([0, 7, 1], np.int32)}

    with pytest.raises(tp.GraphError) as caught:
        run(backend, node, values)

    assert str(caught.value) == (
        f"{node}: ids {ids} holds 7 at [1], which names no row; rows are 0 to 4, and -1 stands for "
        "none"
    )


def test_a_wrong_row_is_found_before_anything_is_written(device, backend):
    table, rows = tp.input("table", (5, 32), tp.F32), tp.input("rows", (2, 32), tp.F32)
    ids = tp.input("ids", (2,), tp.I32)
    node = tp.set_rows(table, rows, ids)
    graph = tp.Graph([], effects=[node])
    zeros, ones = np.zeros((5, 32), np.float32), np.ones((2, 32), np.float32)
    values = {table: zeros, rows: ones, ids: np.array([1, -2], np.int32)}
    bindings = bind(device, graph, values)

    with pytest.raises(tp.GraphError, match=r"ids .* holds -2 at \[1\], which names no row"):
        backend.compute(tp.Part.of(graph, bindings))

    assert not transfer.read(table, bindings).any()


# --- binding again --------------------------------------------------------------------------


def test_binding_anew_changes_addresses_and_keeps_the_program(device, backend):
    x, node = chain(3)
    graph = tp.Graph(node)
    first, second = bind(device, graph, {x: X}), bind(device, graph, {x: 3 * X})
    with backend.plan(tp.Part.of(graph, first)) as plan:
        programs = [stretch.program for stretch in plan._stretches]
        plan.rebind(tp.Part.of(graph, second))
        plan.run()

        assert [stretch.program for stretch in plan._stretches] == programs
    np.testing.assert_allclose(transfer.read(node, second), 3 * X + 3, rtol=1e-6)


def test_binding_again_moves_some_tensors_and_keeps_the_others(device, backend):
    x, y = (tp.input(name, (4, 64), tp.F32) for name in "xy")
    node = x + y
    graph = tp.Graph(node)
    first = bind(device, graph, {x: X, y: 5 * X})
    other = bind(device, graph, {x: 2 * X})
    second = first.with_places({x: other.where(x)})
    third = second.with_places({y: first.where(x)})
    results = []
    with backend.plan(tp.Part.of(graph, first)) as plan:
        for bindings in (second, third, first):
            plan.rebind(tp.Part.of(graph, bindings))
            plan.run()
            results.append(transfer.read(node, bindings))

    np.testing.assert_allclose(results, [7 * X, 3 * X, 6 * X], rtol=1e-6)


def test_binding_again_refuses_memory_that_ends_before_a_tensor_does(device, backend):
    x, node = chain(1)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: X})
    short = device.buffer_type.alloc(x.nbytes - 4)
    with backend.plan(tp.Part.of(graph, bindings)) as plan, pytest.raises(tp.ShapeError):
        plan.rebind(tp.Part.of(graph, bindings.with_places({x: tp.Place(short, 0)})))
    short.close()


def test_binding_again_refuses_weights_that_were_closed(device, backend):
    w, x = tp.input("w", (4, 64), tp.F32), tp.input("x", (4, 64), tp.F32)
    graph = tp.Graph(x + w)
    bindings = bind(device, graph, {x: X})
    home = device.buffer_type.alloc(w.nbytes)
    first = bindings.with_places({w: tp.Place(home, 0)})
    moved = first.with_places({x: bind(device, graph, {x: X}).where(x)})
    with backend.plan(tp.Part.of(graph, first)) as plan:
        home.close()
        with pytest.raises(Closed):
            plan.rebind(tp.Part.of(graph, moved))


def test_weights_that_lie_expanded_in_new_memory_are_encoded_anew(device, backend):
    w, x = tp.input("w", (5, 256), Q8_K), tp.input("x", (1, 256), tp.F32)
    node = tp.mul_mat(w, x)
    graph = tp.Graph(node)
    data = np.zeros((5, Q8_K.row_size(256)), np.uint8)
    plain = bind(device, graph, {x: np.ones((1, 256), np.float32), w: data})
    home = device.expanded.alloc(5 * 256 * 4)
    expanded = plain.with_places({w: tp.Place(home, 0)})
    home.write_tensor(w, 0, data.data.cast("B"))
    with backend.plan(tp.Part.of(graph, plain)) as plan:
        before = parts(plan)
        plan.rebind(tp.Part.of(graph, expanded))
        plan.run()

        assert (before, parts(plan)) == ([(False, "mul_mat")], [(True, "mul_mat")])
    assert not transfer.read(node, expanded).any()
    home.close()


# --- threads --------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_nodes_that_depend_on_each_other_wait_whatever_the_number_of_threads(device, threads):
    x = tp.input("x", (96, 1024), tp.F32)
    node = x
    for i in range(40):
        node = tp.reshape(tp.cont(node.T), (96, 1024)) if i % 4 == 3 else node * 0.5 + x
    data = RNG.normal(size=(96, 1024)).astype(np.float32)
    wanted = data
    for i in range(40):
        wanted = wanted.T.copy().reshape(96, 1024) if i % 4 == 3 else wanted * 0.5 + data

    with device.open(threads=threads) as backend:
        for _ in range(5):
            found = run(backend, node, {x: data})

            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_number_of_threads_may_change_between_runs_of_a_plan(device, backend):
    x, node = chain(3)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: X})
    with device.open(threads=1) as stream, stream.plan(tp.Part.of(graph, bindings)) as plan:
        for threads in (1, 3, 2):
            stream.threads = threads
            plan.run()

            assert stream.pool.count == stream.threads == threads
    np.testing.assert_allclose(transfer.read(node, bindings), X + 3, rtol=1e-6)


def test_two_streams_share_a_pool_from_two_threads(device):
    pool = Pool(2)
    x = tp.input("x", (96, 1024), tp.F32)
    node = tp.soft_max(x * 2.0)
    data = np.zeros((96, 1024), np.float32)
    found = []

    def work():
        with device.open(threads=1) as stream:
            stream.set_thread_pool(pool)
            found.extend(run(stream, node, {x: data}) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()

    assert len(found) == 40
    assert all(np.allclose(values, 1 / 1024) for values in found)


@pytest.mark.skipif(not TASKS.is_dir(), reason="the system does not list threads")
def test_threads_end_with_their_stream_and_with_the_last_reference_to_a_pool(device):
    x, node = chain(1)
    before = len(list(TASKS.iterdir()))

    with device.open(threads=5) as stream:
        run(stream, node, {x: X})
        during = len(list(TASKS.iterdir()))
    closed = len(list(TASKS.iterdir()))
    pool = Pool(5)
    with device.open(threads=1) as stream:
        stream.set_thread_pool(pool)
        run(stream, node, {x: X})
    shared = repr(pool), len(list(TASKS.iterdir()))
    del pool, stream
    gc.collect()

    assert (during - before, closed - before) == (4, 0)
    assert (shared[0], shared[1] - before) == ("<Pool 5 threads, started>", 4)
    assert len(list(TASKS.iterdir())) == before


def test_a_pool_of_another_kind_is_refused(backend):
    with pytest.raises(tp.OptionError) as caught:
        backend.set_thread_pool(object())

    assert "is not a thread pool of tensorplug-native; give a Pool object" in str(caught.value)


# --- stopping -------------------------------------------------------------------------------


@pytest.fixture
def long_plan(device, backend):
    """A plan of one node that takes seconds."""
    w, x = tp.input("w", (2048, 4096), tp.F32), tp.input("x", (4096, 4096), tp.F32)
    graph = tp.Graph(tp.mul_mat(w, x))
    with backend.plan(tp.Part.of(graph, bind(device, graph, {}))) as plan:
        yield plan


def test_abort_stops_within_a_node_and_the_stream_goes_on(device, backend, long_plan):
    asked = []
    backend.abort_callback = lambda: bool(asked.append(time.perf_counter())) or len(asked) > 2
    try:
        with pytest.raises(Aborted) as caught:
            long_plan.run()
    finally:
        ended, backend.abort_callback = time.perf_counter(), None

    (node,) = long_plan.bound.nodes
    assert str(caught.value) == (
        f"cpu:0: stopped by its abort callback after {node}, after 0 of 1 nodes"
    )
    assert ended - asked[-1] < 0.5  # some milliseconds, on a machine with nothing else to do
    x, chained = chain(3)
    np.testing.assert_allclose(run(backend, chained, {x: X}), X + 3, rtol=1e-6)


def test_errors_of_the_abort_callback_are_raised_by_the_run(backend, long_plan):
    answers = iter([False])
    backend.abort_callback = lambda: next(answers)
    try:
        with pytest.raises(StopIteration):
            long_plan.run()
    finally:
        backend.abort_callback = None


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also in a process that was started with it ignored, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_a_run_within_a_node(long_plan):
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    timer.start()

    with pytest.raises(KeyboardInterrupt):
        long_plan.run()

    timer.join()
