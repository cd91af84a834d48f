"""Memory of several devices: bytes look the same whether each device has them or a slice."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta, transfer
from tensorplug.device import allocate, place_in
from tensorplug.graph.tensor import leaf
from tensorplug.meta import cut
from tensorplug_testing.null import null_devices

STATES = [
    cut(0, (5, 3)),
    cut(1, (4, 2)),
    cut(1, (6, 0)),
    cut(0, (2, 2), (1, 1), (1, 1)),
    cut(1, (1, 1), repeat=3),
]
DATA = np.arange(48, dtype=np.float32).reshape(6, 8)


@pytest.fixture
def simple():
    return null_devices(2)


@pytest.fixture(params=STATES, ids=str)
def device(request, simple):
    with meta.device(simple, lambda t: request.param if t.name == "cut" else None) as device:
        yield device


@pytest.fixture
def placed(device):
    """Three tensors in one buffer, the middle one cut."""
    specs = [leaf(name, (6, 8), tp.F32) for name in ("first", "cut", "last")]
    tensors, buffers = allocate(specs, device.buffer_type)
    with buffers:
        yield tensors, buffers


def test_buffer_with_a_cut_tensor_is_read_and_written_as_plain_bytes(placed):
    tensors, buffers = placed
    (buffer,) = buffers.parts
    stored = np.random.default_rng(0).integers(0, 256, buffer.size, np.uint8)

    buffer.write(0, stored)
    buffer.fill(7, 150, 300)
    stored[150:450] = 7
    buffer.write_2d(200, np.arange(40, dtype=np.uint8), row=10, stride=30)
    for i in range(4):
        stored[200 + 30 * i : 210 + 30 * i] = range(10 * i, 10 * i + 10)

    np.testing.assert_array_equal(buffer.read(0, buffer.size), stored)
    np.testing.assert_array_equal(buffer.read(193, 77), stored[193:270])
    place = tensors[1].place
    np.testing.assert_array_equal(
        transfer.read(tensors[1]).reshape(-1).view(np.uint8),
        stored[place.offset : place.offset + 192],
    )


def test_slices_hold_what_the_state_says(device, placed):
    (_, tensor, _), _ = placed
    transfer.write(tensor, DATA)
    region = tensor.place.buffer.region_of(tensor, tensor.place.offset)
    state = device.partition_of(tensor)

    for d, part in enumerate(region.slices):
        columns = [range(start, start + size) for start, size in state.pieces(d)]
        wanted = np.take(DATA, np.concatenate([[], *columns]).astype(int), 1 - state.axis)
        np.testing.assert_array_equal(transfer.read(part), wanted)


def test_other_tensor_over_a_cut_one_makes_plain_bytes_of_it(device, placed):
    (_, tensor, _), _ = placed
    transfer.write(tensor, DATA)
    home = tensor.place
    over = leaf("over", (8, 6), tp.F32)

    assert home.buffer.region_of(over, home.offset) is None
    np.testing.assert_array_equal(transfer.read(tensor), DATA)
    assert device.generation == 1


def test_cut_tensor_is_placed_in_a_buffer_that_is_there(device):
    with device.buffer_type.alloc(1024) as buffer:
        tensor = place_in(leaf("cut", (6, 8), tp.F32), buffer, 256)
        transfer.write(tensor, DATA)

        np.testing.assert_array_equal(buffer.read(256, 192).view(np.float32), DATA.reshape(-1))


def test_all_memory_is_given_back(device, simple, placed):
    tensors, buffers = placed
    transfer.write(tensors[1], DATA)

    buffers.close()

    assert [d.used for d in simple] == [0, 0]
