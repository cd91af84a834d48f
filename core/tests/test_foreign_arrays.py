"""Arrays of other libraries: as inputs, as weights, over their own memory, and results for them."""

import ctypes

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device.foreign import _DLTensor
from tensorplug_testing.null import null_devices

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


class Foreign:
    """An array of another library: it has DLPack, and NumPy's own protocols fail."""

    def __init__(self, array, device=(1, 0), dtype=""):
        self._array, self._device, self.dtype = array, device, dtype

    def __array__(self, *args, **options):
        raise TypeError("a conversion to NumPy without DLPack")

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        assert self._device == (1, 0) or (dl_device, copy) == ((1, 0), True)
        array = self._array.copy() if copy else self._array
        return array.__dlpack__(max_version=max_version)


class Brain(Foreign):
    """An array of bf16, whose bits NumPy has as uint16."""

    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        _DLTensor.from_address(pointer(capsule, b"dltensor")).code = 4
        return capsule


@pytest.fixture
def cpu():
    with tp.open("cpu") as stream:
        yield stream


def brain(array):
    return Brain((array.view(np.uint32) >> 16).astype(np.uint16), dtype="torch.bfloat16")


def rows_times_weights(stream, w, x):
    given = tp.input("x", (2, 4), tp.F32)
    y = given @ w.T
    with tp.Scheduler([stream]).schedule(y) as run:
        return run.run({given: x})[y]


def test_array_of_another_library_is_an_input(cpu):
    w = cpu.place("w", VALUES)

    found = rows_times_weights(cpu, w, Foreign(np.ones((2, 4), np.float32)))

    np.testing.assert_array_equal(found, np.ones((2, 4)) @ VALUES.T)


def test_array_of_another_library_is_a_weight(cpu):
    w = cpu.place("w", Foreign(VALUES))

    np.testing.assert_array_equal(w.numpy(), VALUES)


def test_memory_of_a_device_is_copied_to_the_host_once(cpu):
    w = cpu.place("w", Foreign(VALUES, device=(2, 0)))

    np.testing.assert_array_equal(w.numpy(), VALUES)


def test_array_of_bf16_makes_a_tensor_of_bf16(cpu):
    w = cpu.place("w", brain(VALUES))

    assert w.dtype is tp.BF16
    np.testing.assert_array_equal(w.numpy(), (VALUES.view(np.uint32) >> 16).astype(np.uint16))


def test_input_of_bf16_is_widened_for_a_tensor_of_f32(cpu):
    w = cpu.place("w", VALUES)

    found = rows_times_weights(cpu, w, brain(np.ones((2, 4), np.float32)))

    np.testing.assert_array_equal(found, np.ones((2, 4)) @ VALUES.T)


def test_array_that_refuses_dlpack_is_named_with_its_reason(cpu):
    class Tracked(Foreign):
        def __dlpack__(self, **options):
            raise BufferError("it requires gradients; detach() it")

    with pytest.raises(tp.DTypeError) as caught:
        cpu.place("w", Tracked(VALUES))

    assert str(caught.value) == (
        f"data of {__name__}.{Tracked.__name__} cannot be read through DLPack: it requires "
        "gradients; detach() it"
    )


# --- over the array's own memory ---------------------------------------------------------------


def test_from_dlpack_uses_the_memory_of_the_array(cpu):
    array = VALUES.copy()

    w = tp.from_dlpack(Foreign(array), cpu, name="w", copy=False)

    assert np.shares_memory(w.numpy(), array)
    assert (w.name, w.shape, w.dtype) == ("w", (3, 4), tp.F32)
    assert w.place is not None
    assert w.place.buffer.usage is tp.WEIGHTS


def test_run_sees_what_the_owner_wrote_later(cpu):
    array = VALUES.copy()
    w = tp.from_dlpack(array, cpu)

    array[:] = 1
    found = rows_times_weights(cpu, w, np.ones((2, 4), np.float32))

    np.testing.assert_array_equal(found, np.full((2, 3), 4))


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (VALUES.T, "it is empty or not contiguous"),
        (Foreign(VALUES, device=(2, 0)), "the host does not read it"),
        (np.zeros(33, np.uint8)[1:].view(np.int8), "it does not start at a multiple of 8 bytes"),
    ],
)
def test_what_cannot_be_used_in_place_is_copied_or_refused(cpu, array, why):
    w = tp.from_dlpack(array, cpu, name="w")

    assert w.place is not None
    assert w.place.buffer.type.name == "cpu"
    with pytest.raises(tp.Unsupported) as caught:
        tp.from_dlpack(array, cpu, name="w", copy=False)
    assert str(caught.value) == (
        f"w: cpu:0 cannot use this memory without a copy: {why}; leave out copy=False"
    )


def test_device_that_imports_no_memory_gets_a_copy():
    (device,) = null_devices(1)
    with device.open() as stream:
        w = tp.from_dlpack(VALUES, stream)
        with pytest.raises(tp.Unsupported, match="the device does not import host memory"):
            tp.from_dlpack(VALUES, stream, copy=False)

        np.testing.assert_array_equal(
            rows_times_weights(stream, w, np.ones((2, 4))), [[6, 22, 38]] * 2
        )


def test_copy_true_leaves_the_array_alone(cpu):
    array = VALUES.copy()

    w = tp.from_dlpack(array, cpu, copy=True)

    assert not np.shares_memory(w.numpy(), array)


# --- results -----------------------------------------------------------------------------------


def test_result_is_shared_without_a_copy(cpu):
    x = tp.input("x", (2, 3), tp.F32)
    y = tp.soft_max(x)
    with tp.Scheduler([cpu]).schedule(y) as run:
        results = run.run({x: np.zeros((2, 3), np.float32)})

        first, second = results.shared(y), np.from_dlpack(results.shared(y))

        assert np.shares_memory(first, second)
        np.testing.assert_array_equal(second, results[y])


def test_result_of_memory_that_the_host_does_not_read_is_not_shared():
    (device,) = null_devices(1)
    x = tp.input("x", (2,), tp.F32)
    y = tp.relu(x)
    with device.open() as stream, tp.Scheduler([stream]).schedule(y) as run:
        results = run.run({x: np.zeros(2, np.float32)})

        with pytest.raises(tp.TensorplugError, match="the host cannot see"):
            results.shared(y)


def test_shared_result_of_an_earlier_run_is_stale(cpu):
    x = tp.input("x", (2,), tp.F32)
    y = tp.relu(x)
    with tp.Scheduler([cpu]).schedule(y) as run:
        earlier = run.run({x: np.zeros(2, np.float32)})
        run.run()

        with pytest.raises(tp.TensorplugError, match="its memory was used by a later run"):
            earlier.shared(y)
