"""The stand-in for CuPy says no where CUDA or CuPy would, and at times before they would."""

import numpy as np
import pytest

TEXT = """
extern "C" __global__ void doubled(const float* x, float* y) {
  y[threadIdx.x] = 2 * x[threadIdx.x];
}
extern "C" __global__ void beyond(float* x) { x[threadIdx.x + 16] = 0; }
"""


@pytest.fixture
def cuda(machine):
    from cupy import cuda

    return cuda


@pytest.fixture
def queue(cuda):
    return cuda.Stream(non_blocking=True)


@pytest.fixture
def kernels(cuda):
    return {name: function_of(cuda, TEXT, name) for name in ("doubled", "beyond")}


def function_of(cuda, text, name):
    """A kernel of a text; skips where nothing can be emulated."""
    from tensorplug_emulator import missing

    if missing():
        pytest.skip(missing())
    module = cuda.function.Module()
    module.load(cuda.compiler.compile_using_nvrtc(text)[0])
    return module.get_function(name)


def pointer(cuda, size=64):
    return cuda.MemoryPointer(cuda.Memory(size), 0)


def fails(status):
    from cupy.cuda.runtime import CUDARuntimeError

    return pytest.raises(CUDARuntimeError, match=status)


def test_kernel_runs_when_somebody_waits(cuda, queue, kernels):
    import cupy

    x, y = (cupy.ndarray((16,), np.float32, pointer(cuda)) for _ in range(2))
    x.set(np.arange(16))

    kernels["doubled"]((1, 1, 1), (16, 1, 1), (x.data, y.data), stream=queue)
    before = y.get()
    queue.synchronize()

    assert np.isnan(before).all()
    assert y.get().tolist() == list(range(0, 32, 2))


def test_numbers_reach_a_kernel_as_they_were_when_it_was_queued(cuda, queue, kernels):
    import cupy

    put = function_of(cuda, 'extern "C" __global__ void put(int* x, int n) { *x = n; }', "put")
    x, number = pointer(cuda), np.full(1, 7, np.int32)

    put((1, 1, 1), (1, 1, 1), (x, number), stream=queue)
    number[0] = 9
    queue.synchronize()

    assert cupy.ndarray((1,), np.int32, x).get().tolist() == [7]


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1, 65536, 1), (1, 1, 1)), ((0, 1, 1), (1, 1, 1)), ((1, 1, 1), (64, 32, 1))],
)
def test_launches_of_sizes_that_no_gpu_has_are_refused(cuda, queue, kernels, grid, block):
    from cupy.cuda.driver import CUDADriverError

    with pytest.raises(CUDADriverError):
        kernels["beyond"](grid, block, (pointer(cuda),), stream=queue)


def test_array_of_the_host_is_no_argument(cuda, queue, kernels):
    with pytest.raises(TypeError, match="Unsupported type"):
        kernels["beyond"]((1, 1, 1), (1, 1, 1), (np.zeros(16, np.float32),), stream=queue)


def test_kernel_that_leaves_its_memory_loses_the_gpu(cuda, queue, kernels, machine):
    kernels["beyond"]((1, 1, 1), (1, 1, 1), (pointer(cuda),), stream=queue)

    with fails("IllegalAddress"):
        queue.synchronize()
    with fails("IllegalAddress"):
        cuda.Memory(16)
    machine.gpus[0].error = None


def test_memory_of_another_gpu_is_out_of_reach_of_kernels(cuda, kernels, queue, machine):
    machine.gpus.append(type(machine.gpus[0])())
    with cuda.Device(1):
        theirs = pointer(cuda)

    with fails("memory of GPU 1"):
        kernels["beyond"]((1, 1, 1), (1, 1, 1), (theirs,), stream=queue)


def test_stream_of_another_gpu_takes_no_launch(cuda, kernels, machine):
    from cupy.cuda.driver import CUDADriverError

    machine.gpus.append(type(machine.gpus[0])())
    with cuda.Device(1):
        theirs = cuda.Stream(non_blocking=True)

    with pytest.raises(CUDADriverError, match="another's"):
        kernels["beyond"]((1, 1, 1), (1, 1, 1), (pointer(cuda),), stream=theirs)


def test_array_of_a_gpu_does_not_become_one_of_the_host(cuda):
    import cupy

    with pytest.raises(TypeError, match="Implicit conversion"):
        np.add(cupy.empty(4, np.float32), 1)


def test_copies_stay_within_what_was_allocated(cuda, queue):
    data, memory = np.zeros(128, np.uint8), pointer(cuda)

    with fails("go beyond the allocation"):
        cuda.runtime.memcpyAsync(memory.ptr, data.ctypes.data, 128, 4, queue.ptr)


CAPTURED = {
    "allocation": lambda cuda, queue, event: cuda.Memory(16),
    "pinned allocation": lambda cuda, queue, event: cuda.PinnedMemory(16),
    "waiting for the stream": lambda cuda, queue, event: queue.synchronize(),
    "waiting for the GPU": lambda cuda, queue, event: cuda.Device(0).synchronize(),
    "an event from outside": lambda cuda, queue, event: queue.wait_event(event),
    "a capture in a capture": lambda cuda, queue, event: queue.begin_capture(),
    "looking at a captured event": lambda cuda, queue, event: queue.record().done,
    "waiting for a captured event": lambda cuda, queue, event: queue.record().synchronize(),
    "another capture": lambda cuda, queue, event: capturing(cuda).wait_event(queue.record()),
    "an end by a stream that joined": lambda cuda, queue, event: joined(cuda, queue).end_capture(),
}


def capturing(cuda):
    """Another stream, which captures by itself."""
    stream = cuda.Stream(non_blocking=True)
    stream.begin_capture()
    return stream


def joined(cuda, queue):
    """Another stream, which takes part in the capture of `queue`."""
    stream = cuda.Stream(non_blocking=True)
    stream.wait_event(queue.record())
    return stream


@pytest.mark.parametrize("act", CAPTURED.values(), ids=CAPTURED)
def test_what_spoils_a_capture_fails_and_so_does_its_end(cuda, queue, act):
    event = cuda.Stream(non_blocking=True).record()
    queue.begin_capture()

    with fails("StreamCapture|CapturedEvent"):
        act(cuda, queue, event)

    with fails("StreamCaptureInvalidated"):
        queue.end_capture()


def test_captured_work_is_done_by_its_graph_alone(cuda, queue, kernels):
    import cupy

    x, y = (cupy.ndarray((16,), np.float32, pointer(cuda)) for _ in range(2))
    x.set(np.ones(16))
    queue.begin_capture()
    kernels["doubled"]((1, 1, 1), (16, 1, 1), (x.data, y.data), stream=queue)
    graph = queue.end_capture()

    queue.synchronize()
    before = y.get()
    graph.launch(queue)
    queue.synchronize()

    assert np.isnan(before).all()
    assert y.get().tolist() == [2] * 16


@pytest.fixture
def side(cuda):
    return cuda.Stream(non_blocking=True)


@pytest.fixture
def twice(cuda, kernels):
    """What queues the doubling of one number into another on a stream."""
    import cupy

    numbers = [cupy.ndarray((1,), np.float32, pointer(cuda)) for _ in range(4)]
    numbers[0].set(np.ones(1))

    def queue_on(stream, of, to):
        data = (numbers[of].data, numbers[to].data)
        kernels["doubled"]((1, 1, 1), (1, 1, 1), data, stream=stream)

    queue_on.value = lambda which: float(numbers[which].get()[0])
    return queue_on


def test_stream_that_waits_for_a_captured_event_captures_too(queue, side, twice):
    queue.begin_capture()
    twice(queue, 0, 1)
    side.wait_event(queue.record())
    twice(side, 1, 2)
    during = side.is_capturing()
    queue.wait_event(side.record())
    twice(queue, 2, 3)
    graph = queue.end_capture()

    graph.launch(queue)
    queue.synchronize()

    assert (during, side.is_capturing()) == (True, False)
    assert [sorted(after) for after in graph.captured.after] == [[], [0], [0, 1]]
    assert twice.value(3) == 8


def test_branches_run_in_other_orders_but_never_against_an_edge(queue, side, twice):
    queue.begin_capture()
    twice(queue, 0, 1)
    side.wait_event(queue.record())
    for to in (2, 3):
        twice(queue, 1, to)
        twice(side, 1, to)
    queue.wait_event(side.record())
    graph = queue.end_capture()

    orders = [tuple(graph.captured.order()) for _ in range(20)]

    assert orders[0] == (0, 2, 4, 1, 3)
    assert len(set(orders)) > 3
    assert {(order[0], *sorted(order)) for order in orders} == {(0, 0, 1, 2, 3, 4)}
    assert all(order.index(1) < order.index(3) for order in orders)
    assert all(order.index(2) < order.index(4) for order in orders)


def test_capture_that_misses_work_of_another_stream_fails_and_frees_both(queue, side, twice):
    queue.begin_capture()
    side.wait_event(queue.record())
    twice(side, 0, 1)

    with fails("StreamCaptureUnjoined"):
        queue.end_capture()

    assert not queue.is_capturing()
    assert not side.is_capturing()


def test_event_of_a_capture_that_is_over_orders_nothing(queue, side):
    queue.begin_capture()
    event = queue.record()
    queue.end_capture()

    with fails("CapturedEvent"):
        side.wait_event(event)


def test_writing_beside_an_allocation_is_noticed_when_it_is_freed(cuda, machine):
    from cupy._machine import view

    memory = cuda.Memory(16)
    view(memory.ptr + 16, 1)[:] = 0

    del memory

    assert machine.faults == ["something wrote outside of 16 bytes"]
    machine.faults.clear()


def test_work_on_freed_memory_is_an_error(cuda, queue, machine):
    memory, data = cuda.Memory(16), np.zeros(16, np.uint8)
    cuda.runtime.memcpyAsync(memory.ptr, data.ctypes.data, 16, 4, queue.ptr)
    machine.forget(memory._allocation)

    with fails("memory that was freed"):
        queue.synchronize()
    machine.gpus[0].error = None


DESTROYED = {
    "waiting for the stream": ("stream", lambda runtime, old, new: runtime.streamSynchronize(old)),
    "recording in the stream": ("stream", lambda runtime, old, new: runtime.eventRecord(new, old)),
    "a stream twice": ("stream", lambda runtime, old, new: runtime.streamDestroy(old)),
    "waiting for the event": ("event", lambda runtime, old, new: runtime.eventSynchronize(old)),
    "looking at the event": ("event", lambda runtime, old, new: runtime.eventQuery(old)),
    "a stream that waits": ("event", lambda runtime, old, new: runtime.streamWaitEvent(new, old)),
    "an event twice": ("event", lambda runtime, old, new: runtime.eventDestroy(old)),
}


@pytest.mark.parametrize(("what", "use"), DESTROYED.values(), ids=DESTROYED)
def test_use_of_a_destroyed_stream_or_event_is_a_fault(cuda, queue, machine, what, use):
    event, runtime = cuda.Event(), cuda.runtime
    old, new = {
        "stream": (runtime.streamCreateWithFlags(runtime.streamNonBlocking), event.ptr),
        "event": (runtime.eventCreateWithFlags(runtime.eventDefault), queue.ptr),
    }[what]
    {"stream": runtime.streamDestroy, "event": runtime.eventDestroy}[what](old)

    with fails("InvalidResourceHandle"):
        use(runtime, old, new)

    assert machine.faults == [f"a destroyed {what} was used"]
    machine.faults.clear()


def test_streams_and_events_of_cupy_are_destroyed_by_their_finalizers(cuda, machine):
    made = {"stream": cuda.Stream(non_blocking=True), "event": cuda.Event()}
    handles = {each.ptr for each in made.values()}
    before = handles & {*machine.queues, *machine.events}

    made.clear()

    assert before == handles
    assert not handles & {*machine.queues, *machine.events}


def test_stream_of_another_library_is_not_destroyed_by_cupys_finalizer(cuda, queue, machine):
    class Theirs:
        def __cuda_stream__(self):
            return 0, queue.ptr

    stream = cuda.Stream.from_external(Theirs())
    assert stream.ptr == queue.ptr

    del stream

    assert queue.ptr in machine.queues


def test_work_of_a_destroyed_stream_is_done(cuda, machine):
    data, seen = np.full(16, 7, np.uint8), np.zeros(16, np.uint8)
    stream, memory = cuda.Stream(non_blocking=True), pointer(cuda)
    cuda.runtime.memcpyAsync(memory.ptr, data.ctypes.data, 16, 4, stream.ptr)
    cuda.runtime.memcpyAsync(seen.ctypes.data, memory.ptr, 16, 4, stream.ptr)

    del stream
    cuda.Device(0).synchronize()

    assert (seen == 7).all()
    assert machine.queues == {}
