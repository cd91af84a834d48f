"""The stand-in for Metal says no where Metal would, and where only a GPU would go wrong."""

import numpy as np
import pytest

from tensorplug_emulator import missing

TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void doubled(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                    uint3 place [[thread_position_in_threadgroup]]) {
  y[place.x] = 2.0f * x[place.x];
}
kernel void beyond(device float* x [[buffer(0)]], uint3 place [[thread_position_in_threadgroup]]) {
  x[place.x + 16] = 0.0f;
}
"""
SHARED, PRIVATE = 0, 32
ONE, ITEMS = (1, 1, 1), (16, 1, 1)

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def misuse():
    """What a call that Metal stops the process for raises."""
    from Metal._machine import Misuse

    return lambda match=None: pytest.raises(Misuse, match=match)


@pytest.fixture
def gpu(machine):
    """The device of Metal's."""
    import Metal

    return Metal.MTLCopyAllDevices()[0]


@pytest.fixture
def pool(machine):
    """An autorelease pool around the test."""
    import objc

    with objc.autorelease_pool():
        yield


@pytest.fixture
def commands(gpu, pool):
    """A command buffer of a new queue."""
    return gpu.newCommandQueue().commandBuffer()


def pipeline(gpu, name):
    """A kernel of the text, for encoders and indirect commands."""
    import Metal

    library, error = gpu.newLibraryWithSource_options_error_(TEXT, None, None)
    assert error is None
    wanted = Metal.MTLComputePipelineDescriptor.alloc().init()
    wanted.setComputeFunction_(library.newFunctionWithName_(name))
    wanted.setSupportIndirectCommandBuffers_(True)
    call = gpu.newComputePipelineStateWithDescriptor_options_reflection_error_
    return call(wanted, 0, None, None)[0]


def numbers(gpu, values=None):
    """A shared buffer of 16 floats."""
    buffer = gpu.newBufferWithLength_options_(64, SHARED)
    if values is not None:
        floats(buffer)[:] = values
    return buffer


def floats(buffer):
    return np.frombuffer(buffer.contents().as_buffer(64), np.float32)


def dispatch(encoder, kernel, *buffers):
    encoder.setComputePipelineState_(kernel)
    for i, buffer in enumerate(buffers):
        encoder.setBuffer_offset_atIndex_(buffer, 0, i)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_(ONE, ITEMS)


def test_work_is_done_when_somebody_waits(gpu, commands):
    x, y = numbers(gpu, range(16)), numbers(gpu)
    encoder = commands.computeCommandEncoder()
    dispatch(encoder, pipeline(gpu, "doubled"), x, y)
    encoder.endEncoding()
    commands.commit()
    before = floats(y).copy()

    commands.waitUntilCompleted()

    assert np.isnan(before).all()
    assert floats(y).tolist() == list(range(0, 32, 2))
    assert commands.status() == 4


def test_work_that_asks_for_its_state_is_done_once_and_in_order(gpu, pool):
    queue = gpu.newCommandQueue()
    first, second = queue.commandBuffer(), queue.commandBuffer()
    done = []
    for name, buffer in (("first", first), ("second", second)):
        # As a finalizer does that garbage collection calls within a step.
        buffer.ended(lambda name=name: [*(b.status() for b in (first, second)), done.append(name)])
        buffer.ended(lambda name=name: done.append(name))
        buffer.commit()
    second.waitUntilCompleted()
    assert done == ["first", "first", "second", "second"]


def test_kernel_that_leaves_its_memory_ends_the_command_buffer(gpu, commands):
    encoder = commands.computeCommandEncoder()
    dispatch(encoder, pipeline(gpu, "beyond"), numbers(gpu, [1.0] * 16))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()

    assert commands.status() == 5
    assert commands.error().code() == 3
    assert "outside" in commands.error().localizedDescription()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kernel void f(device float* x [[buffer(0)]]) { float* y = x; }", "no address space"),
        ("kernel void f(device float* x [[buffer(31)]]) {}", "beyond the 31 places"),
        ("kernel void f(device float* x [[buffer(0)]]) { double y = 1; }", "double"),
        ("kernel void f(device float* x [[buffer(0)]]) { x[0] = y; }", "y"),
    ],
)
def test_text_that_is_wrong_is_no_library_and_an_error(gpu, text, told):
    library, error = gpu.newLibraryWithSource_options_error_(text, None, None)

    assert library is None
    assert told in error.localizedDescription()


def test_kernel_with_too_much_local_memory_is_no_pipeline(gpu, machine):
    machine.gpus[0].group_memory = 16
    text = "kernel void f(device float* x [[buffer(0)]]) { threadgroup float y[8]; y[0] = x[0]; }"
    library, _ = gpu.newLibraryWithSource_options_error_(text, None, None)

    made, error = gpu.newComputePipelineStateWithFunction_error_(
        library.newFunctionWithName_("f"), None
    )

    assert made is None
    assert "exceeds the maximum allowed (16)" in error.localizedDescription()


REFUSED_BUFFERS = {
    "of nothing": lambda gpu: gpu.newBufferWithLength_options_(0, SHARED),
    "beyond the largest": lambda gpu: gpu.newBufferWithLength_options_((1 << 28) + 1, SHARED),
    "of another mode": lambda gpu: gpu.newBufferWithLength_options_(16, 16),
}


@pytest.mark.parametrize("act", REFUSED_BUFFERS.values(), ids=REFUSED_BUFFERS)
def test_buffers_that_metal_does_not_make(gpu, misuse, act):
    with misuse("buffer of|storage mode"):
        act(gpu)


@pytest.mark.parametrize(("offset", "size"), [(16, 4096), (0, 100)])
def test_pages_that_are_no_whole_pages_are_not_wrapped(gpu, offset, size):
    import mmap

    pages = memoryview(mmap.mmap(-1, 4 * mmap.PAGESIZE))[offset:][:size]
    call = gpu.newBufferWithBytesNoCopy_length_options_deallocator_

    assert call(pages, size, SHARED, None) is None


def test_private_memory_has_no_contents(gpu):
    assert gpu.newBufferWithLength_options_(64, PRIVATE).contents() is None


REFUSED = {
    "a second encoder": lambda c, e, k, b: c.blitCommandEncoder(),
    "an unfinished encoder": lambda c, e, k, b: c.commit(),
    "a wait before the commit": lambda c, e, k, b: c.waitUntilCompleted(),
    "an error before the end": lambda c, e, k, b: c.error(),
    "no pipeline": lambda c, e, k, b: e.dispatchThreadgroups_threadsPerThreadgroup_(ONE, ITEMS),
    "an absent buffer": lambda c, e, k, b: dispatch(e, k, b),
    "an offset of no word": lambda c, e, k, b: e.setBuffer_offset_atIndex_(b, 2, 0),
    "an offset beyond": lambda c, e, k, b: e.setBuffer_offset_atIndex_(b, 64, 0),
    "a place beyond": lambda c, e, k, b: e.setBuffer_offset_atIndex_(b, 0, 31),
    "many bytes": lambda c, e, k, b: e.setBytes_length_atIndex_(bytes(4100), 4100, 0),
    "fewer bytes than told": lambda c, e, k, b: e.setBytes_length_atIndex_(bytes(4), 8, 0),
    "a large group": lambda c, e, k, b: (
        e.setComputePipelineState_(k),
        e.dispatchThreadgroups_threadsPerThreadgroup_(ONE, (64, 32, 1)),
    ),
    "an end after the end": lambda c, e, k, b: (e.endEncoding(), e.endEncoding()),
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED)
def test_calls_that_metal_stops_the_process_for(gpu, commands, misuse, act):
    encoder = commands.computeCommandEncoder()

    with misuse():
        act(commands, encoder, pipeline(gpu, "doubled"), numbers(gpu))


REFUSED_COPIES = {
    "no whole words": (2, 8, 4),
    "an odd size": (0, 32, 3),
    "bytes beyond": (0, 32, 36),
    "a copy over itself": (0, 8, 12),
}


@pytest.mark.parametrize(("start", "offset", "size"), REFUSED_COPIES.values(), ids=REFUSED_COPIES)
def test_copies_that_metal_stops_the_process_for(gpu, commands, misuse, start, offset, size):
    encoder, buffer = commands.blitCommandEncoder(), numbers(gpu)
    call = encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_

    with misuse("words|bytes|itself"):
        call(buffer, start, buffer, offset, size)


def test_queue_has_no_more_than_64_unfinished_command_buffers(gpu, pool, misuse):
    queue = gpu.newCommandQueue()
    made = [queue.commandBuffer() for _ in range(64)]

    with misuse("all 64 command buffers are taken"):
        queue.commandBuffer()

    for each in made:
        each.commit()
    assert queue.commandBuffer() is not None


def test_object_that_no_pool_releases_is_noticed(gpu, machine):
    gpu.newCommandQueue().commandBuffer()

    assert machine.faults == [
        "a command buffer was made outside of an autorelease pool and stays for good"
    ]
    machine.faults.clear()


def test_indirect_command_needs_its_buffers_named(gpu, commands, machine):
    encoder = commands.computeCommandEncoder()
    encoder.executeCommandsInBuffer_withRange_(recorded(gpu, numbers(gpu), numbers(gpu)), (0, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()

    assert commands.status() == 5
    assert "no useResource names" in commands.error().localizedDescription()


def recorded(gpu, *buffers):
    """One indirect command."""
    import Metal

    wanted = Metal.MTLIndirectCommandBufferDescriptor.alloc().init()
    wanted.setCommandTypes_(32)
    wanted.setInheritBuffers_(False)
    wanted.setInheritPipelineState_(False)
    wanted.setMaxKernelBufferBindCount_(4)
    call = gpu.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    commands = call(wanted, 1, 0)
    command = commands.indirectComputeCommandAtIndex_(0)
    command.setComputePipelineState_(pipeline(gpu, "doubled"))
    for i, buffer in enumerate(buffers):
        command.setKernelBuffer_offset_atIndex_(buffer, 0, i)
    command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(ONE, ITEMS)
    return commands


def test_writing_beside_a_buffer_is_noticed_when_it_goes(gpu, machine):
    import ctypes

    buffer = numbers(gpu)
    ctypes.memset(buffer.address + 64, 0, 1)

    del buffer

    assert machine.faults == ["something wrote outside of a buffer of 64 bytes"]
    machine.faults.clear()
