"""`TransferTests`: bytes and tensors to and from a device, and between any two memories."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.backend import read_async, write_async
from tensorplug.buffer import Buffer, BufferType
from tensorplug.device import Device
from tensorplug.placing import place_in
from tensorplug.tensor import Array, Storage, Tensor, leaf
from tensorplug.testing.null import NullDevice
from tensorplug.testing.suites.abilities import needs
from tensorplug.testing.suites.work import UNTOUCHED, Suite, Work, numbers

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
    "transposed": lambda x: x.T,
    "column": lambda x: x[:, 1],
    "every other column": lambda x: x[:, ::2],
}
"""Parts of an (8, 4) tensor whose rows have gaps."""

REFUSALS: dict[str, tuple[Callable[[Buffer], Any], str, int, int]] = {
    "write at the end": (lambda b: b.write(SIZE, b"x"), "write", SIZE, SIZE + 1),
    "write over the end": (lambda b: b.write(SIZE - 2, b"xyz"), "write", SIZE - 2, SIZE + 1),
    "write before the start": (lambda b: b.write(-1, b"x"), "write", -1, 0),
    "read over the end": (lambda b: b.read(1, SIZE), "read", 1, SIZE + 1),
    "read before the start": (lambda b: b.read(-4, 4), "read", -4, 0),
    "read of a negative size": (lambda b: b.read(0, -1), "read", 0, -1),
    "fill over the end": (lambda b: b.fill(0, 1, SIZE), "fill", 1, SIZE + 1),
    "2D write over the end": (
        lambda b: b.write_2d(0, bytes(4), row=2, stride=SIZE),
        "2D write",
        0,
        SIZE + 2,
    ),
    "2D read over the end": (
        lambda b: b.read_2d(SIZE - 3, 2, row=2, stride=2),
        "2D read",
        SIZE - 3,
        SIZE + 1,
    ),
}


class TransferTests(Suite):
    """Every edge of an offset and a size, rows, parts of tensors, types, copies, refusals."""

    # --- bytes -----------------------------------------------------------------------------

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_written_there_and_nowhere_else(
        self, work: Work, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), _bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data

        buffer.write(offset, data)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_read_from_there(
        self, work: Work, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), _bytes(SIZE)
        buffer.write(0, data)

        np.testing.assert_array_equal(buffer.read(offset, size), data[offset : offset + size])

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_read_into_the_middle_of_host_memory(
        self, work: Work, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), _bytes(SIZE)
        buffer.write(0, data)
        around = np.zeros(size + 14, np.uint8)

        buffer.read_into(offset, around[7 : 7 + size])

        np.testing.assert_array_equal(around[7 : 7 + size], data[offset : offset + size])
        assert not around[:7].any()
        assert not around[7 + size :].any()

    def test_host_memory_may_change_once_it_is_written(
        self, work: Work, memory: BufferType
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), _bytes(SIZE)

        buffer.write(0, data)
        data[...] = 0

        np.testing.assert_array_equal(buffer.read(0, SIZE), _bytes(SIZE))

    def test_bytes_that_were_read_are_a_copy(self, work: Work, memory: BufferType) -> None:
        buffer = work.alloc(SIZE, memory)

        read = buffer.read(0, SIZE)
        buffer.fill(0)
        read[0] = 1

        assert read[1] == UNTOUCHED
        assert not buffer.read(0, SIZE).any()

    def test_large_transfers_arrive_whole(self, work: Work, memory: BufferType) -> None:
        size = min(memory.max_size, 5_000_001)
        buffer, data = work.alloc(size, memory), _bytes(size)

        buffer.write(0, data)

        np.testing.assert_array_equal(buffer.read(0, size), data)

    @pytest.mark.parametrize(
        "data",
        [
            b"abcd",
            bytearray(b"abcd"),
            memoryview(b"abcd"),
            np.arange(4, dtype=">i2"),
            np.float64(1),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_any_contiguous_host_memory_is_written(
        self, work: Work, memory: BufferType, data: Any
    ) -> None:
        buffer, array = work.alloc(SIZE, memory), np.asarray(data)
        raw = array.tobytes() if isinstance(data, np.ndarray | np.generic) else bytes(data)

        buffer.write(5, array if isinstance(data, np.generic) else data)

        assert buffer.read(5, len(raw)).tobytes() == raw

    @pytest.mark.parametrize("which", REFUSALS)
    def test_access_out_of_bounds_is_refused(
        self, work: Work, memory: BufferType, which: str
    ) -> None:
        use, doing, start, end = REFUSALS[which]
        buffer = _exact(work, memory)

        with pytest.raises(tp.ShapeError) as error:
            use(buffer)

        assert str(error.value) == (
            f"{buffer!r}: {doing} of bytes {start} to {end} is out of bounds; "
            f"the buffer has {SIZE} bytes"
        )
        assert set(buffer.read(0, SIZE).tolist()) == {UNTOUCHED}

    # --- rows ------------------------------------------------------------------------------

    @pytest.mark.parametrize("offset", [0, 1, 64])
    @pytest.mark.parametrize(
        ("rows", "row", "stride"), [(1, 1, 1), (3, 5, 5), (4, 1, 7), (3, 16, 64), (2, 33, 90)]
    )
    def test_rows_are_written_apart_and_read_together(
        self, work: Work, memory: BufferType, offset: int, rows: int, row: int, stride: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), _bytes(rows * row).reshape(rows, row)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        for i, line in enumerate(data):
            wanted[offset + i * stride : offset + i * stride + row] = line

        buffer.write_2d(offset, data, row=row, stride=stride)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)
        np.testing.assert_array_equal(buffer.read_2d(offset, rows, row=row, stride=stride), data)

    def test_last_row_may_end_with_the_buffer(self, work: Work, memory: BufferType) -> None:
        buffer, data = _exact(work, memory), _bytes(20).reshape(2, 10)

        buffer.write_2d(SIZE - 110, data, row=10, stride=100)

        np.testing.assert_array_equal(buffer.read_2d(SIZE - 110, 2, row=10, stride=100), data)

    def test_no_rows_are_written_and_read(self, work: Work, memory: BufferType) -> None:
        buffer = work.alloc(SIZE, memory)

        buffer.write_2d(0, b"", row=4, stride=8)

        assert buffer.read_2d(0, 0, row=4, stride=8).shape == (0, 4)
        assert set(buffer.read(0, SIZE).tolist()) == {UNTOUCHED}

    # --- tensors ---------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4, 5), (0, 4), (4, 0)])
    def test_tensor_that_is_written_is_read(
        self, work: Work, memory: BufferType, shape: tuple[int, ...]
    ) -> None:
        tensor, data = work.place(np.zeros(shape, np.float32), memory), numbers(*shape)

        transfer.write(tensor, data)

        np.testing.assert_array_equal(transfer.read(tensor), data)

    @pytest.mark.parametrize("dtype", tp.DTYPES, ids=lambda dtype: dtype.name)
    def test_tensors_of_every_type_come_back_bit_by_bit(
        self, work: Work, memory: BufferType, dtype: tp.DType
    ) -> None:
        spec = leaf("x", (3, 2 * dtype.block), dtype)
        if not memory.supports(spec):
            pytest.skip(f"{memory.name} memory takes no {dtype.name}")
        tensor = place_in(spec, work.alloc(memory.alloc_size(spec), memory), 0)
        raw = _bytes(tensor.nbytes)
        data = raw.reshape(3, -1) if dtype.is_block else raw.view(dtype.storage).reshape(3, -1)

        transfer.write(tensor, data)

        assert transfer.read(tensor).tobytes() == raw.tobytes()

    @pytest.mark.parametrize("view", VIEWS)
    def test_part_of_a_tensor_is_written_and_the_rest_is_left(
        self, work: Work, memory: BufferType, view: str
    ) -> None:
        wanted = numbers(8, 4, seed=1)
        tensor = work.place(wanted, memory)
        data = numbers(*VIEWS[view](wanted).shape)
        VIEWS[view](wanted)[...] = data

        transfer.write(VIEWS[view](tensor), data)

        np.testing.assert_array_equal(transfer.read(tensor), wanted)
        np.testing.assert_array_equal(transfer.read(VIEWS[view](tensor)), data)

    @pytest.mark.parametrize("view", SCATTERED)
    def test_part_with_gaps_in_its_rows_is_read(
        self, work: Work, memory: BufferType, view: str
    ) -> None:
        data = numbers(8, 4)
        tensor = work.place(data, memory)

        np.testing.assert_array_equal(transfer.read(SCATTERED[view](tensor)), SCATTERED[view](data))

    @pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 3), slice(2, 3)], ids=str)
    def test_rows_of_blocks_are_read_and_written(
        self, work: Work, memory: BufferType, rows: slice
    ) -> None:
        wanted = _bytes(108).reshape(3, 36)
        tensor = place_in(leaf("w", (3, 64), tp.Q4_0), work.alloc(512, memory), 0)
        transfer.write(tensor, wanted)
        wanted = wanted.copy()
        wanted[rows] = 255 - wanted[rows]

        transfer.write(tensor[rows], wanted[rows])

        np.testing.assert_array_equal(transfer.read(tensor), wanted)
        np.testing.assert_array_equal(transfer.read(tensor[rows]), wanted[rows])

    def test_fill_of_a_tensor_spares_its_neighbours(self, work: Work, memory: BufferType) -> None:
        tensor = work.place(np.zeros((3, 4), np.int8), memory)

        transfer.fill(tensor[1], 3)

        assert transfer.read(tensor).tolist() == [[0] * 4, [3] * 4, [0] * 4]

    @pytest.mark.parametrize(("offset", "size"), [(0, 48), (4, 4), (1, 3), (47, 1), (48, 0)])
    def test_stored_bytes_of_a_tensor_are_written_and_read(
        self, work: Work, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor, data = work.place(np.zeros(12, np.float32), memory), _bytes(size)

        transfer.write_bytes(tensor, data, offset)

        np.testing.assert_array_equal(transfer.read_bytes(tensor, offset, size), data)
        rest = np.delete(transfer.read_bytes(tensor, 0, 48), np.s_[offset : offset + size])
        assert not rest.any()

    @pytest.mark.parametrize(("offset", "size"), [(45, 4), (-1, 4), (48, 1)])
    def test_stored_bytes_outside_a_tensor_are_refused(
        self, work: Work, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor = work.place(np.zeros(12, np.float32), memory)

        with pytest.raises(tp.ShapeError) as error:
            transfer.write_bytes(tensor, bytes(size), offset)

        assert str(error.value) == (
            f"{tensor}: write of bytes {offset} to {offset + size} is out of bounds; it has 48"
        )

    # --- copies ----------------------------------------------------------------------------

    @pytest.fixture(params=["same", "pinned", "host", "private"])
    def partner(self, request: pytest.FixtureRequest, device: Device) -> Iterator[BufferType]:
        """Memory to copy to and from: the device's, the host's, and that of another device."""
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
        self, work: Work, memory: BufferType, partner: BufferType, offset: int, size: int
    ) -> None:
        with partner.alloc(SIZE + 9) as target:
            _check_copy(work.alloc(SIZE, memory), offset, target, 9, size)

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_copied_in(
        self, work: Work, memory: BufferType, partner: BufferType, offset: int, size: int
    ) -> None:
        with partner.alloc(SIZE + 9) as source:
            _check_copy(source, 9, work.alloc(SIZE, memory), offset, size)

    @pytest.mark.parametrize(("start", "end"), [(0, 4), (4, 0), (0, 100), (100, 0), (3, 3)])
    def test_bytes_are_copied_within_one_buffer_even_where_they_overlap(
        self, work: Work, memory: BufferType, start: int, end: int
    ) -> None:
        buffer, wanted = work.alloc(SIZE, memory), _bytes(SIZE)
        buffer.write(0, wanted)
        wanted[end : end + 64] = _bytes(SIZE)[start : start + 64]

        transfer.copy_bytes(Storage(buffer, start), Storage(buffer, end), 64)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)

    @pytest.mark.parametrize(("start", "end"), [(SIZE - 3, 0), (0, SIZE - 3), (-1, 0), (0, -1)])
    def test_copy_out_of_bounds_is_refused(
        self, work: Work, memory: BufferType, start: int, end: int
    ) -> None:
        source, target = _exact(work, memory), _exact(work, memory)
        wrong = min(start, end) if min(start, end) < 0 else max(start, end)

        with pytest.raises(tp.ShapeError) as error:
            transfer.copy_bytes(Storage(source, start), Storage(target, end), 4)

        assert str(error.value) == (
            f"{source!r}: copy of bytes {wrong} to {wrong + 4} is out of bounds; "
            f"the buffer has {SIZE} bytes"
        )

    @pytest.mark.parametrize("view", [*VIEWS, "transposed"])
    def test_tensors_are_copied_out_and_in(
        self, work: Work, memory: BufferType, partner: BufferType, view: str
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

    def test_copy_between_layouts_is_refused(self, work: Work, memory: BufferType) -> None:
        source, target = work.place(numbers(3, 4), memory), work.place(numbers(4, 3), memory)

        with pytest.raises(tp.ShapeError) as error:
            transfer.copy(source, target)

        assert str(error.value) == (
            f"copy: {source} and {target} differ in type, sizes or strides; use cpy() in a graph"
        )

    @needs("host_buffer")
    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_host_buffers_transfer_like_any_memory(
        self, work: Work, device: Device, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, device.host_buffer_type), _bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data

        buffer.write(offset, data)

        np.testing.assert_array_equal(buffer.host()[:SIZE], wanted)
        np.testing.assert_array_equal(buffer.read(offset, size), data)

    # --- with streams ----------------------------------------------------------------------

    def test_transfers_on_one_stream_keep_their_order(self, work: Work) -> None:
        backend, buffer = work.open(), work.alloc(SIZE)
        first, second = _bytes(SIZE), 255 - _bytes(SIZE)
        seen = [np.zeros(SIZE, np.uint8) for _ in range(3)]
        place = Storage(buffer, 0)

        write_async(backend, place, first)
        read_async(backend, place, seen[0])
        write_async(backend, place, second)
        read_async(backend, place, seen[1])
        write_async(backend, Storage(buffer, 10), first[:5])
        read_async(backend, place, seen[2])
        backend.synchronize()

        np.testing.assert_array_equal(seen[0], first)
        np.testing.assert_array_equal(seen[1], second)
        np.testing.assert_array_equal(seen[2][10:15], first[:5])
        np.testing.assert_array_equal(seen[2][15:], second[15:])

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_transfers_on_a_stream_touch_what_they_name(
        self, work: Work, offset: int, size: int
    ) -> None:
        backend, buffer, data = work.open(), work.alloc(SIZE), _bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data
        seen = np.zeros(size + 2, np.uint8)

        write_async(backend, Storage(buffer, offset), data)
        read_async(backend, Storage(buffer, offset), seen[1 : 1 + size])
        backend.synchronize()

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)
        np.testing.assert_array_equal(seen[1 : 1 + size], data)
        assert not seen[0]
        assert not seen[-1]

    @pytest.mark.parametrize("size", [1, 100, SIZE])
    def test_copies_between_two_streams_arrive(self, work: Work, size: int) -> None:
        source, target = work.open(), work.open()
        a, b, data = work.alloc(SIZE), work.alloc(SIZE), _bytes(size)
        seen = np.zeros(size, np.uint8)

        write_async(source, Storage(a, SIZE - size), data)
        transfer.copy_async(source, target, Storage(a, SIZE - size), Storage(b, 0), size)
        read_async(target, Storage(b, 0), seen)
        target.synchronize()

        np.testing.assert_array_equal(seen, data)

    @pytest.mark.parametrize("partner", ["host", "private"], indirect=True)
    @pytest.mark.parametrize("direction", ["in", "out"])
    def test_copies_between_a_stream_and_another_device_arrive(
        self, work: Work, partner: BufferType, direction: str
    ) -> None:
        ours, others, data = work.open(), partner.device.open(), _bytes(SIZE)
        a, b = Storage(work.alloc(SIZE), 0), Storage(partner.alloc(SIZE), 0)
        ends = [(others, b), (ours, a)] if direction == "in" else [(ours, a), (others, b)]
        (source, start), (target, end) = ends
        seen = np.zeros(SIZE, np.uint8)

        write_async(source, start, data)
        transfer.copy_async(source, target, start, end, SIZE)
        read_async(target, end, seen)
        target.synchronize()
        partner.device.close(force=True)

        np.testing.assert_array_equal(seen, data)


def _bytes(size: int) -> Array:
    """Random bytes, none of them UNTOUCHED."""
    data = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    data[data == UNTOUCHED] = 0
    return data


def _exact(work: Work, memory: BufferType) -> Buffer:
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
    data = _bytes(source.size)
    source.write(0, data)
    target.fill(UNTOUCHED)
    wanted = np.full(target.size, UNTOUCHED, np.uint8)
    wanted[end : end + size] = data[start : start + size]

    transfer.copy_bytes(Storage(source, start), Storage(target, end), size)

    np.testing.assert_array_equal(target.read(0, target.size), wanted)
    np.testing.assert_array_equal(source.read(0, source.size), data)
