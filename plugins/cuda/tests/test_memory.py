"""Memory of a GPU, and host memory that it reaches; emulated."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceLost
from tensorplug_emulator.suites.devices import StandInMemoryTests


class TestMemory(StandInMemoryTests):
    """What every device over a stand-in says of memory."""

    exhausted = "cudaErrorMemoryAllocation"


def test_new_memory_holds_what_the_host_writes(device):
    data = np.arange(64, dtype=np.uint8)
    with device.buffer_type.alloc(64) as buffer:
        buffer.write(0, data)
        buffer.fill(7, 8, 8)

        got = buffer.read(0, 64)

    assert got.tolist() == [*range(8), *[7] * 8, *range(16, 64)]


def test_queued_transfers_are_done_once_somebody_waits(device, stream):
    data, got = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    with device.buffer_type.alloc(16) as buffer:
        buffer.fill(0)
        stream.write_async(buffer, 0, data.data)
        stream.read_async(buffer, 0, got.data)
        stream.synchronize()

    assert got.tolist() == data.tolist()


def test_pinned_memory_outlives_its_buffer_in_arrays(device):
    with device.host_buffer_type.alloc(100) as buffer:
        array = buffer.host()
        array[:] = 3

    assert (array == 3).all()
    assert array.ctypes.data % 64 == 0


def test_registered_memory_is_known_to_the_driver_until_it_is_closed(device, machine):
    data = np.arange(8192, dtype=np.uint8)

    with device.register_host(data) as held:
        inside = machine.find(data.ctypes.data)
        assert repr(held) == "<Registration cuda:0, 8192 bytes>"

    assert inside is not None
    assert inside.ordinal is None
    assert machine.find(data.ctypes.data) is None


def test_memory_that_is_registered_already_is_an_error_with_its_cause(device):
    data = np.zeros(8192, np.uint8)

    with device.register_host(data), pytest.raises(tp.DeviceError, match="AlreadyRegistered"):
        device.register_host(data[100:])


def test_memory_that_is_registered_already_cannot_be_imported_and_is_copied(device):
    data = np.arange(8192, dtype=np.uint8)

    with device.register_host(data), device.open() as stream:
        with pytest.raises(tp.Unsupported, match=r"AlreadyRegistered.*place\(\) copies it"):
            device.import_host(data)
        copied = tp.from_dlpack(data.view(np.int8), stream)

        assert copied.place.buffer.memory.ptr != data.ctypes.data


def test_imported_memory_is_copied_to_another_gpu(pair):
    first, second = pair
    data = np.arange(4096, dtype=np.uint8)

    with first.import_host(data) as here, second.buffer_type.alloc(4096) as there:
        assert there._copy_from(here, 0, 0, 4096)

        assert (there.read(0, 4096) == data).all()


def test_imported_memory_reads_and_writes_the_array(device):
    data = np.arange(4096, dtype=np.uint8)
    with device.buffer_type.alloc(4096) as other, device.import_host(data) as buffer:
        assert buffer.memory.ptr == data.ctypes.data
        assert device.memory().free == device.total - other.size


def test_memory_of_others_is_not_counted_as_ours(device):
    before = device._allocated
    with device.import_host(np.zeros(4096, np.uint8)):
        assert device._allocated == before


def test_system_where_kernels_do_not_reach_host_memory_says_so(machine, devices):
    machine.gpus[0].properties["canUseHostPointerForRegisteredMem"] = 0
    (device,) = devices()

    with device, pytest.raises(tp.Unsupported, match=r"do not reach host memory.*place\(\) it"):
        device.import_host(np.zeros(4096, np.uint8))


def test_gpu_that_failed_for_good_is_a_lost_device(device, machine):
    from cupy.cuda.runtime import CUDARuntimeError

    machine.gpus[0].error = CUDARuntimeError(719, "a kernel failed")
    with pytest.raises(DeviceLost, match=r"cuda:0: 64 bytes: status 719 \(a kernel failed\)"):
        device.buffer_type.alloc(64)
    machine.gpus[0].error = None
