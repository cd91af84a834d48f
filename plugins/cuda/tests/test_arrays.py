"""Arrays of other libraries in both directions, without copies; emulated."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import DeviceError, Plan
from tensorplug.errors import DTypeError, NotAllocated, ShapeError
from tensorplug_emulator import missing


@pytest.fixture
def cupy(machine):
    import cupy

    return cupy


class Interface:
    """An array of a library that only has the interface of CUDA arrays."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


class Exchanged:
    """An array of a library that only has DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture
def theirs(cupy, device):
    """An array [3, 4] of another library on the GPU."""
    with device.current():
        made = cupy.empty((3, 4), np.float32)
    made.set(np.arange(12, dtype=np.float32).reshape(3, 4))
    return made


@pytest.mark.parametrize("kind", [Interface, Exchanged, lambda array: array])
def test_array_of_another_library_is_a_tensor_in_the_same_memory(device, theirs, kind):
    tensor = device.import_array("x", kind(theirs))

    assert (tensor.shape, tensor.dtype, tensor.name) == ((3, 4), tp.F32, "x")
    assert tensor.place.buffer.address == theirs.data.ptr
    assert transfer.read(tensor).tolist() == theirs.get().tolist()
    theirs.set(np.zeros((3, 4), np.float32))
    assert not transfer.read(tensor).any()


def test_array_lives_as_long_as_the_tensor(cupy, device, machine):
    with device.current():
        theirs = cupy.empty((3, 4), np.float32)
    tensor = device.import_array("x", Exchanged(theirs))

    del theirs
    kept = machine.gpus[0].allocated
    del tensor

    assert (kept, machine.gpus[0].allocated) == (48, 0)


def test_array_with_gaps_keeps_its_strides(cupy, device, theirs):
    part = cupy.ndarray((3, 2), np.float32, theirs.data, (16, 4))

    tensor = device.import_array("x", part)

    assert tensor.strides == (16, 4)
    assert transfer.read(tensor).tolist() == [[0, 1], [4, 5], [8, 9]]


def test_bytes_can_be_another_type(cupy, device):
    with device.current():
        bits, rows = cupy.empty((2, 4), np.uint16), cupy.empty((5, 68), np.uint8)

    half = device.import_array("h", bits, dtype=tp.BF16)
    blocks = device.import_array("b", rows, dtype="q8_0")

    assert (half.dtype, half.shape) == (tp.BF16, (2, 4))
    assert (blocks.dtype, blocks.shape, blocks.strides) == (tp.Q8_0, (5, 64), (68, 34))


def test_type_that_the_elements_are_not_is_refused(device, theirs):
    with pytest.raises(DTypeError, match="cuda:0: array 'x': elements of float32 are not bf16"):
        device.import_array("x", theirs, dtype=tp.BF16)


def test_rows_that_are_no_blocks_are_refused(cupy, device):
    with device.current():
        rows = cupy.empty((5, 70), np.uint8)

    with pytest.raises(ShapeError, match="its rows are not blocks of 34 bytes of q8_0"):
        device.import_array("x", rows, dtype=tp.Q8_0)


def test_array_that_runs_backwards_is_refused(cupy, device, theirs):
    turned = cupy.ndarray((3, 4), np.float32, theirs.data + 32, (-16, 4))

    with pytest.raises(ShapeError, match=r"runs backwards in memory, strides \(-16, 4\); copy it"):
        device.import_array("x", turned)


def test_array_that_starts_between_is_refused(cupy, device, theirs):
    odd = cupy.ndarray((3,), np.float32, theirs.data + 4)

    with pytest.raises(ShapeError, match="starts 4 bytes past a multiple of 16; copy it"):
        device.import_array("x", odd)


def test_array_of_another_gpu_is_refused(cupy, machine, devices):
    machine.reset(gpus=2)
    first, second = devices()
    with first, second:
        with second.current():
            theirs = cupy.empty((4,), np.float32)

        with pytest.raises(DeviceError, match="cuda:0: array 'x': lies on GPU 1, not on 0"):
            first.import_array("x", theirs)


def test_other_libraries_view_a_tensor_where_it_lies(cupy, device):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    with device.open() as stream:
        tensor = stream.place("x", data)

        seen = cupy.from_dlpack(tensor)

    assert tensor.__dlpack_device__() == (2, 0)
    assert seen.data.ptr == tensor.place.buffer.address
    assert seen.get().tolist() == data.tolist()
    assert seen.__cuda_array_interface__["data"] == (seen.data.ptr, False)


def test_views_are_seen_with_their_strides(cupy, device, stream):
    tensor = stream.place("x", np.arange(12, dtype=np.float32).reshape(3, 4))

    seen = cupy.from_dlpack(tensor[1:, :2])

    assert seen.strides == (16, 4)
    assert seen.get().tolist() == [[4, 5], [8, 9]]


def test_blocks_are_seen_as_bytes(cupy, device, stream):
    stored = np.arange(5 * 68, dtype=np.uint8).reshape(5, 68)
    tensor = stream.place("x", stored, dtype=tp.Q8_0)

    seen = cupy.from_dlpack(tensor)

    assert seen.get().tolist() == stored.tolist()


def test_memory_outlives_its_buffer_in_arrays_of_others(cupy, device, stream):
    tensor = stream.place("x", np.ones(4, np.float32))
    seen = cupy.from_dlpack(tensor)

    tensor.place.buffer.close()

    assert seen.get().tolist() == [1, 1, 1, 1]


def test_tensor_without_memory_has_nothing_to_share(device):
    with pytest.raises(NotAllocated, match="has no memory of its own"):
        tp.input("x", (4,), tp.F32).__dlpack__()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_launches_that_meet_in_an_array_imported_twice_are_not_merged(device, theirs):
    x, y = (device.import_array(name, theirs) for name in "xy")
    writes = [tp.cpy(x[i : i + 1], y[i + 1 : i + 2]) for i in range(2)]

    with (
        device.open() as stream,
        tp.Scheduler([stream]).schedule(writes[1], effects=writes[:1]) as run,
    ):
        run.run({})
        stream.synchronize()
        (plan,) = (child for child in stream.children if isinstance(child, Plan))

        assert plan.launches == 2
    assert theirs.get().tolist() == [[0, 1, 2, 3]] * 3
