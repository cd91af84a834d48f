"""Memory of a GPU, and host memory that it reaches; emulated."""

import mmap

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import place_in
from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import leaf
from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import StandInMemoryTests
from tensorplug_metal.pages import PAGE, cut

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestMemory(StandInMemoryTests):
    """What every device over a stand-in says of memory."""

    exhausted = "Metal has no memory for it"


def test_host_and_gpu_see_the_same_bytes(device):
    with device.buffer_type.alloc(64) as buffer:
        buffer.host()[:] = 3

        assert set(buffer.views[0].handle.bytes.tolist()) == {3}


def test_memory_that_an_array_shows_outlives_its_buffer(device):
    with device.buffer_type.alloc(100) as buffer:
        array = buffer.host()
        array[:] = 3

    assert (array == 3).all()


@pytest.mark.parametrize(("offset", "size"), [(0, 16), (4, 8), (1, 2), (3, 9), (15, 1)])
def test_private_memory_takes_and_gives_any_bytes(device, offset, size):
    data = np.arange(100, 100 + size, dtype=np.uint8)
    with device.private.alloc(16) as buffer:
        buffer.write(0, np.arange(16, dtype=np.uint8))

        buffer.write(offset, data)

        expected = [*range(offset), *data.tolist(), *range(offset + size, 16)]
        assert buffer.read(0, 16).tolist() == expected
        assert buffer.read(offset, size).tolist() == data.tolist()


def test_private_memory_of_no_whole_words_is_whole(device):
    data = np.arange(7, dtype=np.uint8)
    with device.private.alloc(7) as buffer:
        buffer.write(0, data)

        assert buffer.read(0, 7).tolist() == data.tolist()
        assert buffer.read(5, 2).tolist() == [5, 6]


@pytest.mark.parametrize(("offset", "size"), [(0, 16), (4, 8), (5, 6)])
def test_private_memory_is_filled_in_part(device, offset, size):
    with device.private.alloc(16) as buffer:
        buffer.fill(1)
        buffer.fill(7, offset, size)

        rest = 16 - offset - size
        assert buffer.read(0, 16).tolist() == [*[1] * offset, *[7] * size, *[1] * rest]


def test_imported_memory_is_seen_with_the_pages_around_it(device):
    data = np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.uint8)[112:212]
    with device.import_host(data) as buffer:
        (view,) = buffer.views

        assert (view.start, view.end, view.margin) == (0, 100, 112)
        assert view.handle.address + view.margin == data.ctypes.data
        assert device.memory().free == device.total


def test_memory_that_metal_does_not_take_says_so(device, monkeypatch):
    taken = "newBufferWithBytesNoCopy_length_options_deallocator_"
    monkeypatch.setattr(type(device.handle), taken, lambda *_: None)

    with pytest.raises(tp.Unsupported, match=r"Metal does not take .* place\(\) copies them"):
        device.import_host(np.zeros(4096, np.uint8))


@pytest.mark.parametrize("pages", [3, 5, 6, 7, 40, 101])
@pytest.mark.parametrize("largest_tensor", [1, PAGE - 1, PAGE, 2 * PAGE + 1])
def test_every_tensor_lies_whole_in_a_part(pages, largest_tensor):
    size, most = pages * PAGE, 6 * PAGE

    parts = cut(size, most, largest_tensor)

    last = size - largest_tensor
    lost = [
        start
        for start in (*range(0, last, PAGE // 4 + 1), last)
        if not any(first <= start and start + largest_tensor <= end for first, end in parts)
    ]
    assert lost == []
    assert all(end - first <= most and first % PAGE == 0 for first, end in parts)
    assert parts[-1][1] == size


def test_tensor_that_fits_no_part_is_refused():
    with pytest.raises(ShapeError, match=f"a tensor of {5 * PAGE} bytes and the pages around"):
        cut(100 * PAGE, 6 * PAGE, 5 * PAGE)


def test_tensors_of_a_region_beyond_the_largest_buffer_are_computed_on(devices, machine):
    machine.gpus[0].max_buffer = 4 * PAGE
    (device,) = devices()
    raw = np.empty(12 * PAGE, np.uint8)
    begin = -raw.ctypes.data % PAGE + 64  # not at a page: one more buffer is needed
    data = raw[begin : begin + 10 * PAGE].view(np.float32)
    data[:] = np.arange(data.size)
    count = PAGE // 4
    with device, device.open() as stream, device.import_host(data, largest_tensor=PAGE) as buffer:
        views = len(buffer.views)
        for start in range(0, 9 * PAGE, PAGE // 2 + 32):
            x = place_in(leaf("x", (count,), tp.F32), buffer, start)
            y = tp.scale(x, 2.0)
            with tp.Scheduler([stream]).schedule(y) as run:
                got = run.run({})[y]

            assert (got == 2 * data[start // 4 : start // 4 + count]).all()

    assert views == 5


def test_tensor_across_the_parts_of_its_region_is_an_error(devices, machine):
    machine.gpus[0].max_buffer = 4 * PAGE
    (device,) = devices()
    data = np.zeros(10 * PAGE // 4, np.float32)
    with device, device.open() as stream, device.import_host(data) as buffer:
        x = place_in(leaf("x", (PAGE,), tp.F32), buffer, 2 * PAGE)
        y = tp.scale(x, 2.0)

        with pytest.raises(ShapeError, match=r"lies across .*largest_tensor=\) makes them overlap"):
            tp.Scheduler([stream]).schedule(y)
