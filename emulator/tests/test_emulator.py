"""The emulator: what kernels compute, and that planted faults are found."""

from pathlib import Path

import numpy as np
import pytest

from tensorplug.device import DeviceError
from tensorplug_emulator import Library, Memory, Order, library, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TEXT = r"""
extern "C" __global__ void summed(const float* x, float* y, int count) {
  __shared__ float parts[8];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += x[i];
  for (int other = 16; other > 0; other >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < blockDim.x / 32; i++) sum += parts[i];
    y[blockIdx.x] = sum;
  }
}
extern "C" __global__ void turned_without_barrier(const float* x, float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = row[63 - threadIdx.x];
}
extern "C" __global__ void turned_within_a_warp(const float* x, float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void beyond(const float* x, float* y, int at) { y[at] = x[0]; }
extern "C" __global__ void before(const float* x, float* y, int at) { y[0] = x[at]; }
extern "C" __global__ void into_source(float* x, float* y) { x[3] = y[0]; }
extern "C" __global__ void odd(const unsigned char* x, int* y, int at) {
  y[0] = *(const int*)(x + at);
}
extern "C" __global__ void divergent(const float* x, float* y) {
  if (threadIdx.x < 40) __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void divergent_warp(const float* x, float* y) {
  if (threadIdx.x & 1) y[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 0);
}
extern "C" __global__ void unset(const float* x, float* y) {
  __shared__ float row[64];
  y[threadIdx.x] = row[threadIdx.x];
}
extern "C" __global__ void lanes(const int* x, int* y) {
  const int mine = x[threadIdx.x];
  const int below = __shfl_down_sync(0xffffffffu, mine, 3);
  y[threadIdx.x] = below + 1000 * __shfl_sync(0xffffffffu, mine, 1, 8);
  if (threadIdx.x < 16) y[32 + threadIdx.x] = __shfl_up_sync(0xffffu, mine, 1);
  if (__any_sync(0xffffffffu, mine == 31)) y[48] = (int)__ballot_sync(0xffffffffu, mine & 1);
}
extern "C" __global__ void counted(int* x) { atomicAdd(x, 1); }
"""


@pytest.fixture(scope="module")
def kernels() -> Library:
    return library(TEXT)


def _launch(kernels, name, arrays, *numbers, local=64, order=Order.FORWARD):
    """One group of a kernel; the first array may only be read."""
    memory = [
        Memory(label, array.ctypes.data, array.nbytes, writable=array.flags.writeable)
        for label, array in zip("xy", arrays, strict=False)
    ]
    pointers = [np.uint64(m.address).tobytes() for m in memory]
    arguments = [*pointers, *(np.int32(n).tobytes() for n in numbers)]
    kernels.launch(name, (1, 1, 1), (local, 1, 1), arguments, memory, order=order, seed=3)


def _arrays(count=64):
    x = np.arange(count, dtype=np.float32)
    x.flags.writeable = False
    return x, np.zeros(count, np.float32)


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
def test_items_add_up_through_shuffles_and_local_memory(kernels, order):
    x, y = _arrays(1000)

    _launch(kernels, "summed", (x, y), 1000, local=256, order=order)

    assert y[0] == x.sum()


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
def test_missing_barrier_is_an_error_in_any_order(kernels, order):
    with pytest.raises(DeviceError) as error:
        _launch(kernels, "turned_without_barrier", _arrays(), order=order)

    assert "kernel turned_without_barrier: items " in str(error.value)
    assert str(error.value).endswith(" bytes with no barrier between")


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
def test_barrier_of_a_warp_orders_its_items(kernels, order):
    x, y = _arrays(32)

    _launch(kernels, "turned_within_a_warp", (x, y), local=32, order=order)

    np.testing.assert_array_equal(y, x[::-1])


def test_barrier_of_a_warp_orders_no_items_of_another(kernels):
    with pytest.raises(DeviceError, match="write and read offset"):
        _launch(kernels, "turned_within_a_warp", _arrays())


@pytest.mark.parametrize(
    ("kernel", "numbers", "problem"),
    [
        (
            "beyond",
            (64,),
            "writes 4 bytes at offset 256 of buffer y of 256 bytes, which is outside",
        ),
        ("before", (-2,), "reads 4 bytes at offset -8 of buffer x of 256 bytes, which is outside"),
        (
            "into_source",
            (),
            "writes 4 bytes at offset 12 of buffer x of 256 bytes, which it may only read",
        ),
        (
            "odd",
            (34,),
            "reads 4 bytes at offset 34 of buffer x of 256 bytes, which is not aligned to its size",
        ),
    ],
)
def test_bad_access_names_kernel_buffer_and_offset(kernels, kernel, numbers, problem):
    with pytest.raises(DeviceError) as error:
        _launch(kernels, kernel, _arrays(), *numbers)

    who = "by item (0, 0, 0) of group (0, 0, 0)"
    assert str(error.value) == f"emulated kernel {kernel}: {problem}, {who}"


def test_access_beyond_local_memory_is_an_error():
    # The bounds of local memory are those of a text: this one has a single kernel.
    text = r"""
    extern "C" __global__ void local_beyond(const float* x, float* y, int at) {
      __shared__ float row[16];
      row[at] = x[0];
      __syncthreads();
      y[0] = row[0];
    }
    """
    with pytest.raises(DeviceError, match="writes 4 bytes at offset 64 of its local memory of 64"):
        _launch(library(text), "local_beyond", _arrays(), 16)


@pytest.mark.parametrize(
    ("kernel", "waiting"),
    [
        ("divergent", "40 wait at a barrier of the group, 0 at one of a warp, 24 have ended"),
        ("divergent_warp", "0 wait at a barrier of the group, 32 at one of a warp, 32 have ended"),
    ],
)
def test_divergent_barrier_is_an_error(kernels, kernel, waiting):
    with pytest.raises(DeviceError) as error:
        _launch(kernels, kernel, _arrays())

    where = "divergent barrier in group (0, 0, 0): of 64 items"
    assert str(error.value) == f"emulated kernel {kernel}: {where} {waiting}"


def test_kernels_run_after_one_that_failed(kernels):
    with pytest.raises(DeviceError):
        _launch(kernels, "divergent", _arrays())
    x, y = _arrays()

    _launch(kernels, "summed", (x, y), 64)

    assert y[0] == x.sum()


def test_local_memory_holds_nan_before_it_is_written(kernels):
    x, y = _arrays()

    _launch(kernels, "unset", (x, y))

    assert np.isnan(y).all()


def test_lanes_exchange_values_as_in_a_warp(kernels):
    x, y = np.arange(32, dtype=np.int32), np.zeros(64, np.int32)
    lanes = np.arange(32)

    _launch(kernels, "lanes", (x, y), local=32)

    below = np.where(lanes + 3 < 32, lanes + 3, lanes)
    np.testing.assert_array_equal(y[:32], below + 1000 * (lanes // 8 * 8 + 1))
    np.testing.assert_array_equal(y[32:48], [0, *range(15)])
    assert np.uint32(y[48]) == 0xAAAAAAAA


def test_atomics_count_every_item(kernels):
    x = np.zeros(1, np.int32)

    _launch(kernels, "counted", (x,), local=96)

    assert x[0] == 96


def test_half_conversions_are_those_of_numpy():
    text = r"""
    extern "C" __global__ void halves(const float* x, unsigned short* y) {
      const int i = blockIdx.x * 64 + threadIdx.x;
      y[i] = float_to_half_bits(x[i]);
    }
    extern "C" __global__ void floats(const unsigned short* x, float* y) {
      const int i = blockIdx.x * 64 + threadIdx.x;
      y[i] = half_bits_to_float(x[i]);
    }
    """
    both = library(text)
    bits = np.arange(65536, dtype=np.uint16)
    exact = bits.view(np.float16).astype(np.float32)
    random = np.random.default_rng(2).integers(0, 2**32, 65536, np.uint32).view(np.float32)
    finite = exact[np.isfinite(exact)]
    middles = (finite[:-1] + finite[1:]) / 2
    values = np.resize(np.concatenate([exact, middles, random]), 3 * 65536)
    floats, halves = np.zeros(65536, np.float32), np.zeros(values.size, np.uint16)

    for name, x, y in (("floats", bits, floats), ("halves", values, halves)):
        memory = [Memory(n, a.ctypes.data, a.nbytes) for n, a in (("x", x), ("y", y))]
        pointers = [np.uint64(m.address).tobytes() for m in memory]
        both.launch(name, (x.size // 64, 1, 1), (64, 1, 1), pointers, memory)

    np.testing.assert_array_equal(floats, exact)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    np.testing.assert_array_equal(halves.view(np.float16), wanted)


def test_all_texts_of_a_process_share_the_stacks_of_their_items():
    # All items are alive at the barrier.
    body = "{{ __syncthreads(); x[threadIdx.x] = {n}; }}"
    text = f'extern "C" __global__ void stacks_{{n}}(float* x) {body}'
    x = np.zeros(1024, np.float32)
    memory = [Memory("x", x.ctypes.data, x.nbytes)]
    mappings = []

    for n in range(3):
        library(text.format(n=n)).launch(
            f"stacks_{n}", (1, 1, 1), (1024, 1, 1), [np.uint64(x.ctypes.data).tobytes()], memory
        )
        mappings.append(len(Path("/proc/self/maps").read_text().splitlines()))

    assert mappings[0] > 2 * 1024
    assert mappings[2] - mappings[0] < 100
