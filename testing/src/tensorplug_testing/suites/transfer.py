"""`TransferTests`: transfers of bytes and tensors between the host, a device and other memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Buffer, BufferType, leaf, place_in, transfer
from tensorplug.dtypes import DTYPES
from tensorplug_testing.suites.copies import (
    EDGES,
    SCATTERED,
    SIZE,
    VIEWS,
    CopyTests,
    exact,
    random_bytes,
)
from tensorplug_testing.suites.queued import QueuedTests
from tensorplug_testing.suites.work import UNTOUCHED, Rig, numbers

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


class TransferTests(CopyTests, QueuedTests):
    """Extreme offsets and sizes, rows, parts of tensors, types, copies, and refusals."""

    # --- bytes -----------------------------------------------------------------------------

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_written_there_and_nowhere_else(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), random_bytes(size)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = data

        buffer.write(offset, data)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_read_from_there(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), random_bytes(SIZE)
        buffer.write(0, data)

        np.testing.assert_array_equal(buffer.read(offset, size), data[offset : offset + size])

    @pytest.mark.parametrize(("offset", "size"), EDGES)
    def test_bytes_are_read_into_the_middle_of_host_memory(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), random_bytes(SIZE)
        buffer.write(0, data)
        around = np.zeros(size + 14, np.uint8)

        buffer.read_into(offset, around[7 : 7 + size])

        np.testing.assert_array_equal(around[7 : 7 + size], data[offset : offset + size])
        assert not around[:7].any()
        assert not around[7 + size :].any()

    def test_host_memory_may_change_once_it_is_written(self, work: Rig, memory: BufferType) -> None:
        buffer, data = work.alloc(SIZE, memory), random_bytes(SIZE)

        buffer.write(0, data)
        data[...] = 0

        np.testing.assert_array_equal(buffer.read(0, SIZE), random_bytes(SIZE))

    def test_bytes_that_were_read_are_a_copy(self, work: Rig, memory: BufferType) -> None:
        buffer = work.alloc(SIZE, memory)

        read = buffer.read(0, SIZE)
        buffer.fill(0)
        read[0] = 1

        assert read[1] == UNTOUCHED
        assert not buffer.read(0, SIZE).any()

    def test_large_transfers_arrive_whole(self, work: Rig, memory: BufferType) -> None:
        size = min(memory.max_size, 5_000_001)
        buffer, data = work.alloc(size, memory), random_bytes(size)

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
        self, work: Rig, memory: BufferType, data: Any
    ) -> None:
        buffer, array = work.alloc(SIZE, memory), np.asarray(data)
        raw = array.tobytes() if isinstance(data, np.ndarray | np.generic) else bytes(data)

        buffer.write(5, array if isinstance(data, np.generic) else data)

        assert buffer.read(5, len(raw)).tobytes() == raw

    @pytest.mark.parametrize("which", REFUSALS)
    def test_access_out_of_bounds_is_refused(
        self, work: Rig, memory: BufferType, which: str
    ) -> None:
        use, doing, start, end = REFUSALS[which]
        buffer = exact(work, memory)

        with pytest.raises(tp.ShapeError) as error:
            use(buffer)

        assert str(error.value) == (
            f"{buffer!r}: {doing} of bytes {start} to {end} is out of bounds; "
            f"the buffer has {SIZE} bytes"
        )
        assert set(buffer.read(0, SIZE).tolist()) == {UNTOUCHED}

    @pytest.mark.parametrize(("offset", "size"), [(0, 48), (4, 4), (1, 3), (47, 1), (48, 0)])
    def test_part_of_a_tensor_is_filled_and_the_rest_is_left(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor = work.place(np.zeros(12, np.float32), memory)
        wanted = np.zeros(48, np.uint8)
        wanted[offset : offset + size] = 7

        transfer.fill(tensor, 7, offset=offset, size=size)

        assert transfer.read_bytes(tensor, 0, 48).tolist() == wanted.tolist()

    @pytest.mark.parametrize(("offset", "size"), [(45, 4), (-1, 4), (48, 1), (0, 49)])
    def test_fill_beyond_a_tensor_is_refused(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor = work.place(np.zeros(12, np.float32), memory)

        with pytest.raises(tp.ShapeError) as error:
            transfer.fill(tensor, 7, offset=offset, size=size)

        assert str(error.value) == (
            f"{tensor}: fill of bytes {offset} to {offset + size} is out of bounds; it has 48"
        )
        assert not transfer.read(tensor).any()

    # --- rows ------------------------------------------------------------------------------

    @pytest.mark.parametrize("offset", [0, 1, 64])
    @pytest.mark.parametrize(
        ("rows", "row", "stride"), [(1, 1, 1), (3, 5, 5), (4, 1, 7), (3, 16, 64), (2, 33, 90)]
    )
    def test_rows_are_written_apart_and_read_together(
        self, work: Rig, memory: BufferType, offset: int, rows: int, row: int, stride: int
    ) -> None:
        buffer, data = work.alloc(SIZE, memory), random_bytes(rows * row).reshape(rows, row)
        wanted = np.full(SIZE, UNTOUCHED, np.uint8)
        for i, line in enumerate(data):
            wanted[offset + i * stride : offset + i * stride + row] = line

        buffer.write_2d(offset, data, row=row, stride=stride)

        np.testing.assert_array_equal(buffer.read(0, SIZE), wanted)
        np.testing.assert_array_equal(buffer.read_2d(offset, rows, row=row, stride=stride), data)

    def test_last_row_may_end_with_the_buffer(self, work: Rig, memory: BufferType) -> None:
        buffer, data = exact(work, memory), random_bytes(20).reshape(2, 10)

        buffer.write_2d(SIZE - 110, data, row=10, stride=100)

        np.testing.assert_array_equal(buffer.read_2d(SIZE - 110, 2, row=10, stride=100), data)

    def test_no_rows_are_written_and_read(self, work: Rig, memory: BufferType) -> None:
        buffer = work.alloc(SIZE, memory)

        buffer.write_2d(0, b"", row=4, stride=8)

        assert buffer.read_2d(0, 0, row=4, stride=8).shape == (0, 4)
        assert set(buffer.read(0, SIZE).tolist()) == {UNTOUCHED}

    # --- tensors ---------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4, 5), (0, 4), (4, 0)])
    def test_tensor_that_is_written_is_read(
        self, work: Rig, memory: BufferType, shape: tuple[int, ...]
    ) -> None:
        tensor, data = work.place(np.zeros(shape, np.float32), memory), numbers(*shape)

        transfer.write(tensor, data)

        np.testing.assert_array_equal(transfer.read(tensor), data)

    @pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
    def test_tensors_of_every_type_come_back_bit_by_bit(
        self, work: Rig, memory: BufferType, dtype: tp.DType
    ) -> None:
        spec = leaf("x", (3, 2 * dtype.block), dtype)
        if not memory.supports(spec):
            pytest.skip(f"{memory.name} memory takes no {dtype.name}")
        tensor = place_in(spec, work.alloc(memory.alloc_size(spec), memory), 0)
        raw = random_bytes(tensor.nbytes)
        data = raw.reshape(3, -1) if dtype.is_block else raw.view(dtype.storage).reshape(3, -1)

        transfer.write(tensor, data)

        assert transfer.read(tensor).tobytes() == raw.tobytes()

    @pytest.mark.parametrize("view", VIEWS)
    def test_part_of_a_tensor_is_written_and_the_rest_is_left(
        self, work: Rig, memory: BufferType, view: str
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
        self, work: Rig, memory: BufferType, view: str
    ) -> None:
        data = numbers(8, 4)
        tensor = work.place(data, memory)

        np.testing.assert_array_equal(transfer.read(SCATTERED[view](tensor)), SCATTERED[view](data))

    @pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 3), slice(2, 3)], ids=str)
    def test_rows_of_blocks_are_read_and_written(
        self, work: Rig, memory: BufferType, rows: slice
    ) -> None:
        wanted = random_bytes(108).reshape(3, 36)
        tensor = place_in(leaf("w", (3, 64), tp.Q4_0), work.alloc(512, memory), 0)
        transfer.write(tensor, wanted)
        wanted = wanted.copy()
        wanted[rows] = 255 - wanted[rows]

        transfer.write(tensor[rows], wanted[rows])

        np.testing.assert_array_equal(transfer.read(tensor), wanted)
        np.testing.assert_array_equal(transfer.read(tensor[rows]), wanted[rows])

    def test_fill_of_a_tensor_spares_its_neighbours(self, work: Rig, memory: BufferType) -> None:
        tensor = work.place(np.zeros((3, 4), np.int8), memory)

        transfer.fill(tensor[1], 3)

        assert transfer.read(tensor).tolist() == [[0] * 4, [3] * 4, [0] * 4]

    @pytest.mark.parametrize(("offset", "size"), [(0, 48), (4, 4), (1, 3), (47, 1), (48, 0)])
    def test_stored_bytes_of_a_tensor_are_written_and_read(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor, data = work.place(np.zeros(12, np.float32), memory), random_bytes(size)

        transfer.write_bytes(tensor, data, offset)

        np.testing.assert_array_equal(transfer.read_bytes(tensor, offset, size), data)
        rest = np.delete(transfer.read_bytes(tensor, 0, 48), np.s_[offset : offset + size])
        assert not rest.any()

    @pytest.mark.parametrize(("offset", "size"), [(45, 4), (-1, 4), (48, 1)])
    def test_stored_bytes_outside_a_tensor_are_refused(
        self, work: Rig, memory: BufferType, offset: int, size: int
    ) -> None:
        tensor = work.place(np.zeros(12, np.float32), memory)

        with pytest.raises(tp.ShapeError) as error:
            transfer.write_bytes(tensor, bytes(size), offset)

        assert str(error.value) == (
            f"{tensor}: write of bytes {offset} to {offset + size} is out of bounds; it has 48"
        )
