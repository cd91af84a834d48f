"""`CopyTests`: copies of bytes and tensors between memories, immediate or queued on streams."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    Device,
    Place,
    Tensor,
    leaf,
    place_in,
    transfer,
)
from tensorplug.device.moving import copy_bytes, queue_copy, queue_read, queue_write
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.abilities import needs
from tensorplug_testing.suites.work import UNTOUCHED, Rig, Suite, numbers

SIZE = 300
EDGES = [
    (0, 0),
    (0, 1),
    (0, SIZE),
    (1, 1),
    (1, SIZE - 1),
    (3, 5),
    (63, 2),
    (64, 64),
    (SIZE - 1, 1),
    (SIZE, 0),
]
"""Offset and size of transfers in a buffer of SIZE bytes."""

VIEWS: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x[1],
    "rows": lambda x: x[1:],
    "every other row": lambda x: x[::2],
    "columns": lambda x: x[:, 1:3],
    "box": lambda x: x.reshape(2, 2, 2, 4)[1:, :, 1:, 1:3],
    "matrices": lambda x: x.reshape(2, 2, 2, 4)[:, 1, :, :3],
    "nothing": lambda x: x[:0, 1:],
}
"""Parts of an (8, 4) tensor that keep rows without gaps."""
SCATTERED: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.mT,
    "column": lambda x: x[:, 1],
    "every other column": lambda x: x[:, ::2],
}
"""Parts of an (8, 4) tensor whose rows have gaps."""


class CopyTests(Suite):
    """Copies between the device's memory, its host buffers, host memory and another device."""

    # --- copies ----------------------------------------------------------------------------

    @pytest.fixture(params=["same", "pinned", "host", "private"])
    def partner(self, request: pytest.FixtureRequest, device: Device) -> Iterator[BufferType]:
        """The other side of copies: the device's memory, host memory, or that of another device."""
        own = {"same": device.buffer_type, "pinned": device.host_buffer_type}
        if request.param in own:
            kind = own[request.param]
            if kind is None:
                pytest.skip(f"{device.name} has no host buffers")
            yield kind
            return
        with NullDevice(f"{request.param}:0", host=request.param == "host") as other:
            yield other.buffer_type

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_copied_out(
        self, work: Rig, memory: BufferType, partner: BufferType, offset: int, size: int
    ) -> None:
        with partner.alloc(SIZE + 9) as target:
            _check_copy(work.alloc(SIZE, memory), offset, target, 9, size)

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_copied_in(
        self, work: Rig, memory: BufferType, partner: BufferType, offset: int, size: int
    ) -> None:
        with partner.alloc(SIZE + 9) as source:
            _check_copy(source, 9, work.alloc(SIZE, memory), offset, size)

    @pytest.mark.parametrize(("start", "end"), [(0, 4), (4, 0), (0, 100), (100, 0), (3, 3)])
    def test_bytes_are_copied_within_one_buffer_even_where_they_overlap(
        self, work: Rig, memory: BufferType, start: int, end: int
    ) -> None:
        buffer, wanted = work.alloc(SIZE, memory), random_bytes(SIZE)
        buffer.write(0, wanted)
        wanted[end : end + 64] = random_bytes(SIZE)[start : start + 64]

        copy_bytes(Place(buffer, start), Place(buffer, end), 64)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)

    @pytest.mark.parametrize(("start", "end"), [(SIZE - 3, 0), (0, SIZE - 3), (-1, 0), (0, -1)])
    def test_copy_out_of_bounds_is_refused(
        self, work: Rig, memory: BufferType, start: int, end: int
    ) -> None:
        source, target = exact(work, memory), exact(work, memory)
        wrong = min(start, end) if min(start, end) < 0 else max(start, end)

        with pytest.raises(tp.ShapeError) as error:
            copy_bytes(Place(source, start), Place(target, end), 4)

        assert str(error.value) == (
            f"{source!r}: copy of bytes {wrong} to {wrong + 4} is out of bounds; "
            f"the buffer has {SIZE} bytes"
        )

    @pytest.mark.parametrize("view", [*VIEWS, "transposed"])
    def test_tensors_are_copied_out_and_in(
        self, work: Rig, memory: BufferType, partner: BufferType, view: str
    ) -> None:
        look = {**VIEWS, **SCATTERED}[view]
        data, wanted = numbers(8, 4), numbers(8, 4, seed=1)
        ours, others = work.place(data, memory), _place(partner, wanted)
        look(wanted)[...] = look(data)

        transfer.copy(look(ours), look(others))
        np.testing.assert_array_equal(transfer.read(others), wanted)
        transfer.fill(ours, 0)
        transfer.copy(others, ours)

        np.testing.assert_array_equal(transfer.read(ours), wanted)

    def test_copy_between_layouts_is_refused(self, work: Rig, memory: BufferType) -> None:
        source, target = work.place(numbers(3, 4), memory), work.place(numbers(4, 3), memory)

        with pytest.raises(tp.ShapeError) as error:
            transfer.copy(source, target)

        assert str(error.value) == (
            f"copy: {source} and {target} differ in type, sizes or strides; use cpy() in a graph"
        )

    @needs("host_buffer")
    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_host_buffers_transfer_like_any_memory(
        self, work: Rig, device: Device, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, device.host_buffer_type), random_bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data

        buffer.write(offset, data)

        np.testing.assert_array_equal(buffer.host()[:SIZE], wanted)
        np.testing.assert_array_equal(buffer.read(offset, size), data)

    # --- with streams ----------------------------------------------------------------------

    def test_transfers_on_one_stream_keep_their_order(self, work: Rig) -> None:
        backend, buffer = work.open(), work.alloc(SIZE)
        first, second = random_bytes(SIZE), 255 - random_bytes(SIZE)
        seen = [np.zeros(SIZE, np.uint8) for _ in range(3)]
        place = Place(buffer, 0)

        queue_write(backend, place, first)
        queue_read(backend, place, seen[0])
        queue_write(backend, place, second)
        queue_read(backend, place, seen[1])
        queue_write(backend, Place(buffer, 10), first[:5])
        queue_read(backend, place, seen[2])
        backend.synchronize()

        np.testing.assert_array_equal(seen[0], first)
        np.testing.assert_array_equal(seen[1], second)
        np.testing.assert_array_equal(seen[2][10:15], first[:5])
        np.testing.assert_array_equal(seen[2][15:], second[15:])

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_transfers_on_a_stream_touch_what_they_name(
        self, work: Rig, offset: int, size: int
    ) -> None:
        backend, buffer, data = work.open(), work.alloc(SIZE), random_bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data
        seen = np.zeros(size + 2, np.uint8)

        queue_write(backend, Place(buffer, offset), data)
        queue_read(backend, Place(buffer, offset), seen[1 : 1 + size])
        backend.synchronize()

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)
        np.testing.assert_array_equal(seen[1 : 1 + size], data)
        assert not seen[0]
        assert not seen[-1]

    @pytest.mark.parametrize("size", [1, 100, SIZE])
    def test_copies_between_two_streams_arrive(self, work: Rig, size: int) -> None:
        source, target = work.open(), work.open()
        a, b, data = work.alloc(SIZE), work.alloc(SIZE), random_bytes(size)
        seen = np.zeros(size, np.uint8)

        queue_write(source, Place(a, SIZE - size), data)
        queue_copy(source, target, Place(a, SIZE - size), Place(b, 0), size)
        queue_read(target, Place(b, 0), seen)
        target.synchronize()

        np.testing.assert_array_equal(seen, data)

    @pytest.mark.parametrize("partner", ["host", "private"], indirect=True)
    @pytest.mark.parametrize("direction", ["in", "out"])
    def test_copies_between_a_stream_and_another_device_arrive(
        self, work: Rig, partner: BufferType, direction: str
    ) -> None:
        ours, others, data = work.open(), partner.device.open(), random_bytes(SIZE)
        a, b = Place(work.alloc(SIZE), 0), Place(partner.alloc(SIZE), 0)
        ends = [(others, b), (ours, a)] if direction == "in" else [(ours, a), (others, b)]
        (source, start), (target, end) = ends
        seen = np.zeros(SIZE, np.uint8)

        queue_write(source, start, data)
        queue_copy(source, target, start, end, SIZE)
        queue_read(target, end, seen)
        target.synchronize()
        partner.device.close(force=True)

        np.testing.assert_array_equal(seen, data)


def random_bytes(size: int) -> Array:
    """Random bytes, none of them UNTOUCHED."""
    data = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    data[data == UNTOUCHED] = 0
    return data


def exact(work: Rig, memory: BufferType) -> Buffer:
    """A buffer of exactly SIZE bytes, full of UNTOUCHED."""
    buffer = work.alloc(SIZE, memory)
    if buffer.size != SIZE:
        pytest.skip(f"{memory.name} rounds buffers up: {buffer.size} bytes for {SIZE}")
    return buffer


def _place(memory: BufferType, data: Array) -> Tensor:
    tensor = place_in(leaf("y", data.shape, tp.F32), memory.alloc(data.nbytes), 0)
    transfer.write(tensor, data)
    return tensor


def _check_copy(source: Buffer, start: int, target: Buffer, end: int, size: int) -> None:
    data = random_bytes(source.size)
    source.write(0, data)
    target.fill(UNTOUCHED)
    wanted = np.full(target.size, UNTOUCHED, np.uint8)
    wanted[end : end + size] = data[start : start + size]

    copy_bytes(Place(source, start), Place(target, end), size)

    np.testing.assert_array_equal(target.read(0, target.size), wanted)
    np.testing.assert_array_equal(source.read(0, source.size), data)
