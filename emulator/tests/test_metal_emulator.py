"""Texts in Metal Shading Language on the processor: what runs, and which faults are found."""

import numpy as np
import pytest

from tensorplug.device import DeviceError
from tensorplug_emulator import Memory, Order, library, missing, spaces
from tensorplug_emulator.metal import METAL_LANGUAGE
from tensorplug_emulator.spaces import space_problems

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TEXT = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
struct sizes { int count; };
constant const int step[2] = {1, 3};

kernel void reversed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                     constant sizes& p [[buffer(2)]], uint item [[thread_index_in_threadgroup]]) {
  threadgroup float kept[64];
  kept[item] = x[item] * step[1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if ((int)item < p.count) y[item] = kept[63 - item];
}
kernel void summed(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   ushort lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const float total = simd_sum(x[group.x * 64 + simdgroup * 32 + lane]);
  if (lane == 0) y[group.x * 2 + simdgroup] = total + (float)half(0.1f);
}
kernel void multiplied(device const float* a [[buffer(0)]], device const half* b [[buffer(1)]],
                       device float* c [[buffer(2)]]) {
  simdgroup_float8x8 left, sum = simdgroup_float8x8(1.0f);
  simdgroup_half8x8 right;
  simdgroup_load(left, a, 8, ulong2(0, 0), true);
  simdgroup_load(right, b, 16, ulong2(8, 0));
  simdgroup_multiply_accumulate(sum, left, right, sum);
  simdgroup_store(sum, c, 8);
}
kernel void counted(device atomic_uint* count [[buffer(0)]], device float4* v [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(count, i, memory_order_relaxed);
  const float4 twice = v[0] * 2.0f + float4(1.0f, 2.0f, 3.0f, 4.0f);
  const float most = simd_max(twice.w), same = as_type<float>(as_type<uint>(twice.y));
  if (i == 0) v[0] = float4(dot(twice, twice), same, twice[2], most);
}
"""


def run(kernel, groups, local, *arrays, text=TEXT, order=Order.FORWARD, watched=False):
    """Launch a kernel with one buffer for each array; only those of floats may be written."""
    memory = [
        Memory(f"b{i}", a.ctypes.data, a.nbytes, writable=a.flags.writeable)
        for i, a in enumerate(arrays)
    ]
    pointers = [np.uint64(m.address).tobytes() for m in memory]
    library(text, METAL_LANGUAGE).launch(
        kernel, (groups, 1, 1), (local, 1, 1), pointers, memory, order=order, watched=watched
    )


def fixed(values, dtype=np.float32):
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("order", Order)
def test_arrays_of_a_group_are_shared_in_every_order(order):
    y = np.zeros(64, np.float32)

    run("reversed", 1, 64, fixed(range(64)), y, fixed([60], np.int32), order=order)

    assert y.tolist() == [3.0 * (63 - i) if i < 60 else 0.0 for i in range(64)]


def test_simdgroups_of_32_sum_for_themselves():
    y = np.zeros(4, np.float32)

    run("summed", 2, 64, fixed(range(128)), y)

    sums = np.arange(128).reshape(4, 32).sum(1)
    assert y.tolist() == [np.float32(s) + np.float32(np.float16(0.1)) for s in sums]


def test_matrices_of_a_simdgroup_multiply():
    random = np.random.default_rng(0)
    a = random.standard_normal((8, 8), np.float32)
    b = random.standard_normal((8, 16)).astype(np.float16)
    c = np.zeros((8, 8), np.float32)

    run("multiplied", 1, 32, a, b, c)

    np.testing.assert_allclose(c, a.T @ b[:, 8:].astype(np.float32) + np.eye(8), atol=1e-5)


def test_atomics_vectors_and_bits():
    count, v = np.zeros(1, np.uint32), np.array([1, 2, 3, 4], np.float32)

    run("counted", 1, 32, count, v)

    assert count[0] == 31 * 32 // 2
    assert v.tolist() == [9.0 + 36.0 + 81.0 + 144.0, 6.0, 9.0, 12.0]


FAULTS = {
    "a missing barrier": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "",
        "with no barrier between",
    ),
    "a barrier that some items miss": (
        "if ((int)item",
        "if (item < 40u) threadgroup_barrier(mem_flags::mem_none); if ((int)item",
        "divergent barrier",
    ),
    "a write behind the end": ("y[item] =", "y[item + 1] =", "of buffer b1 of 256 bytes"),
    "a write to what is only read": ("y[item] =", "((device float*)x)[item] =", "only read"),
    "an index behind an array": ("kept[item] =", "kept[item + 1] =", "local memory"),
    "parameters beyond their block": ("int count;", "int other[4], count;", "reads 4 bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault):
    before, after, message = FAULTS[fault]
    y = np.zeros(64, np.float32)

    with pytest.raises(DeviceError, match=message):
        run(
            *("reversed", 1, 64, fixed(range(64)), y, fixed([64], np.int32)),
            text=TEXT.replace(before, after),
        )


PASSED_ON = """
#include <metal_stdlib>
using namespace metal;
kernel void passed_on(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] = i;
  threadgroup_barrier(mem_flags::KIND);
  x[32 + (i ^ 1)] = x[i ^ 1];
}
"""


def test_barrier_orders_the_kinds_of_memory_that_it_names():
    x = np.zeros(64, np.float32)

    with pytest.raises(DeviceError, match=r"write and read offset \d+ of buffer b0"):
        run("passed_on", 1, 32, x, text=PASSED_ON.replace("KIND", "mem_threadgroup"), watched=True)
    run("passed_on", 1, 32, x, text=PASSED_ON.replace("KIND", "mem_device"), watched=True)

    assert x.tolist() == [*range(32), *range(32)]


def test_nothing_orders_groups():
    with pytest.raises(DeviceError, match="an item of another group both write offset 128 of"):
        run(
            *("passed_on", 2, 32, np.zeros(128, np.float32)),
            text=PASSED_ON.replace("KIND", "mem_device"),
            watched=True,
        )


def test_a_barrier_for_buffers_alone_does_not_order_local_memory():
    wrong = TEXT.replace("mem_flags::mem_threadgroup", "mem_flags::mem_device")

    with pytest.raises(DeviceError, match="local memory of 256 bytes with no barrier between"):
        run(
            *("reversed", 1, 64, fixed(range(64)), np.zeros(64, np.float32)),
            fixed([64], np.int32),
            text=wrong,
        )


def test_atomics_are_no_race():
    count, v = np.zeros(1, np.uint32), np.zeros(64, np.float32)
    text = TEXT.replace("if (i == 0) v[0] =", "if (i == 0) v[1] =")

    run("counted", 2, 32, count, v, text=text, watched=True)

    assert count[0] == 63 * 64 // 2


def test_items_of_a_simdgroup_must_name_one_matrix():
    wrong = TEXT.replace(
        "device float* c [[buffer(2)]])",
        "device float* c [[buffer(2)]], uint lane [[thread_index_in_simdgroup]])",
    ).replace("simdgroup_store(sum, c, 8)", "simdgroup_store(sum, c + lane, 8)")
    a, b = np.zeros(64, np.float32), np.zeros(128, np.float16)

    with pytest.raises(DeviceError, match="name different places of a matrix"):
        run("multiplied", 1, 32, a, b, np.zeros(64, np.float32), text=wrong)


@pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
def test_clang_knows_the_text():
    assert space_problems(TEXT) == []


@pytest.mark.skipif(bool(spaces.missing()), reason=spaces.missing())
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y[item] = kept", "threadgroup float* q = y; y[item] = kept"),
        ("y[item] = kept", "thread const float* q = kept; y[item] = kept"),
        ("(device atomic_uint", "(constant atomic_uint"),
        ("int step[2]", "int step[1]"),
        ("y[item] = kept", "x[0] = 1.0f; y[item] = kept"),
    ],
)
def test_clang_finds_a_wrong_address_space(before, after):
    assert before in TEXT

    assert "error: " in "".join(space_problems(TEXT.replace(before, after)))
