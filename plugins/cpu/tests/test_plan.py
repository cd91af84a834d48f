"""Plans: prepared once, run and bound again as often as needed, stopped between nodes."""

import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import tensorplug as tp
from tensorplug import transfer
from tensorplug.errors import Aborted
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.threads import Workers, blas_threads
from tensorplug_testing.running import bind, run

X = np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32)


def chain(n):
    """`n` nodes that each add 1."""
    x = tp.input("x", (4, 8), tp.F32)
    node = x
    for _ in range(n):
        node = node + 1.0
    return x, node


# --- runs -----------------------------------------------------------------------------------


def test_a_plan_runs_again_with_what_was_written_in_between(device, backend):
    x, node = chain(2)
    bindings = bind(device, tp.Graph(node), {x: X})
    with backend.plan(tp.Part.of(tp.Graph(node), bindings)) as plan:
        plan.run()
        transfer.write(x, 2 * X, bindings)
        plan.run()

        np.testing.assert_allclose(transfer.read(node, bindings), 2 * X + 2, rtol=1e-6)


def test_a_plan_bound_to_other_memory_works_there(device, backend):
    x, node = chain(2)
    graph = tp.Graph(node)
    first, second = bind(device, graph, {x: X}), bind(device, graph, {x: 3 * X})
    with backend.plan(tp.Part.of(graph, first)) as plan:
        plan.rebind(tp.Part.of(graph, second))
        plan.run()

    np.testing.assert_allclose(transfer.read(node, second), 3 * X + 2, rtol=1e-6)


def test_empty_nodes_are_left_out(backend):
    x = tp.input("x", (0, 8), tp.F32)

    found = run(backend, tp.rms_norm(x), {x: np.empty((0, 8), np.float32)})

    assert found.shape == (0, 8)


def test_nan_and_infinity_are_values_without_warnings_on_any_thread(backend):
    x = tp.input("x", (512, 1024), tp.F32)
    data = np.full((512, 1024), -np.inf, np.float32)

    found = run(backend, tp.log(tp.sqrt(tp.div(tp.exp(x), x))), {x: data})

    assert np.isneginf(found).all()


def test_reading_before_writing_keeps_the_order_of_the_program(device, backend):
    x = tp.input("x", (4, 8), tp.F32)
    before = x + 0.0
    written = tp.cpy(x * 10.0, x)
    graph = tp.Graph([before, written + 0.0])
    bindings = bind(device, graph, {x: X})

    backend.compute(tp.Part.of(graph, bindings))

    np.testing.assert_array_equal(transfer.read(before, bindings), X)
    np.testing.assert_array_equal(transfer.read(written, bindings), X * np.float32(10))


# --- abort ----------------------------------------------------------------------------------


def test_abort_callback_is_asked_before_each_node_and_stops_the_run(device, backend):
    x, node = chain(3)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: X})
    answers = iter([False, False, True])
    with backend.plan(tp.Part.of(graph, bindings)) as plan:
        backend.abort_callback = lambda: next(answers)
        try:
            with pytest.raises(Aborted) as caught:
                plan.run()
        finally:
            backend.abort_callback = None
        plan.run()

    assert str(caught.value) == (
        f"cpu:0: stopped by its abort callback before {node}, after 2 of 3 nodes"
    )
    np.testing.assert_allclose(transfer.read(node, bindings), X + 3, rtol=1e-6)


def test_run_goes_on_while_the_abort_callback_says_so(backend):
    x, node = chain(3)
    asked = []
    backend.abort_callback = lambda: bool(asked.append(1))
    try:
        found = run(backend, node, {x: X})
    finally:
        backend.abort_callback = None

    assert len(asked) == 3
    np.testing.assert_allclose(found, X + 3, rtol=1e-6)


# --- shared tables --------------------------------------------------------------------------


def test_angles_follow_positions_that_change_between_runs(device, backend):
    x, at = tp.input("x", (4, 2, 8), tp.F32), tp.input("at", (4,), tp.I32)
    data = np.random.default_rng(0).normal(size=(4, 2, 8)).astype(np.float32)
    once = tp.rope(x, at, dims=8)
    node = tp.rope(once, at, dims=8)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: data, at: np.arange(4, dtype=np.int32)})
    with backend.plan(tp.Part.of(graph, bindings)) as plan:
        plan.run()
        transfer.write(at, np.zeros(4, np.int32), bindings)
        plan.run()

    np.testing.assert_allclose(transfer.read(node, bindings), data, rtol=1e-6)


def test_scratch_memory_is_shared_by_the_nodes_of_a_plan(device, backend):
    x = tp.input("x", (64, 1024), tp.F32)
    node = x
    for _ in range(50):
        node = tp.silu(node)
    graph = tp.Graph(node)
    bindings = bind(device, graph, {x: np.ones((64, 1024), np.float32)})

    with backend.plan(tp.Part.of(graph, bindings)) as plan:
        taken = plan._scratch.size

    assert 0 < taken <= 4 * 64 * 1024 * 4


# --- threads and the plain functions --------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_number_of_threads_does_not_change_results(device, backend, threads):
    x = tp.input("x", (700, 1000), tp.F32)
    data = np.random.default_rng(7).normal(size=(700, 1000)).astype(np.float32)
    node = tp.soft_max(tp.gelu(x))

    with device.open(threads=threads) as other:
        found = run(other, node, {x: data})

    np.testing.assert_allclose(found, run(backend, node, {x: data}), rtol=1e-6)


def test_two_backends_share_a_thread_pool(device):
    pool = Workers(2)
    x = tp.input("x", (700, 1000), tp.F32)
    data = np.ones((700, 1000), np.float32)
    with device.open(threads=1) as one, device.open(threads=1) as two:
        for backend in (one, two):
            backend.set_thread_pool(pool)

            found = run(backend, tp.exp(x), {x: data})

            assert backend.threads == 2
            np.testing.assert_allclose(found, np.exp(data), rtol=1e-6)
        one.set_thread_pool(None)
        assert one.threads == 1
    pool.close()


def test_something_else_than_a_thread_pool_is_refused(backend):
    with pytest.raises(tp.OptionError) as caught:
        backend.set_thread_pool("all of them")

    assert str(caught.value) == (
        "cpu:0: 'all of them' is not a thread pool of tensorplug-cpu; give a Workers object"
    )


def test_error_on_a_worker_thread_is_raised_after_the_others_have_ended():
    ended = []

    def fail():
        raise ValueError("wrong")

    with pytest.raises(ValueError, match=r"^wrong$"):
        Workers(2).run([lambda: None, fail, lambda: ended.append(1)])

    assert ended == [1]


def test_backends_of_one_device_run_in_several_threads_at_once(device):
    x, node = chain(40)
    found = {}

    def work(i):
        with device.open(threads=2) as backend:
            found[i] = run(backend, node, {x: X + i})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for i in range(4):
        np.testing.assert_allclose(found[i], X + i + 40, rtol=1e-6)


def test_blas_has_its_threads_back_after_overlapping_runs():
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    before = [library.num_threads for library in libraries]
    first, second = blas_threads(1), blas_threads(3)

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert [library.num_threads for library in libraries] == before


def test_reference_switch_computes_with_the_plain_functions(device):
    x, w = tp.input("x", (4, 64), tp.F32), leaf("w", (8, 64), tp.Q8_0)
    rng = np.random.default_rng(1)
    values = {
        x: rng.normal(size=(4, 64)).astype(np.float32),
        w: rng.integers(0, 60, (8, 68), dtype=np.uint8),
    }
    node = tp.soft_max(x @ w.T)
    with device.open() as backend:
        fast = run(backend, node, values)
        backend.use_reference = True
        plain = run(backend, node, values)

    assert plain.dtype == np.float32
    np.testing.assert_allclose(fast, plain, rtol=1e-5)
    assert (fast != plain).any()
