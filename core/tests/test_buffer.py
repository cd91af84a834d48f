"""Bytes in and out of buffers, bounds, usage, and several buffers under one name."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    BufferType,
    BufferUsage,
    HostBuffer,
    Memory,
    MultiBuffer,
    UnallocatedBuffer,
    as_bytes,
)
from tensorplug.device.moving import copy_bytes
from tensorplug.errors import BufferTooLarge, NotAllocated, ShapeError
from tensorplug.text import human
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice


@pytest.fixture(params=[False, True], ids=["private", "host"])
def device(request: pytest.FixtureRequest):
    with NullDevice(host=request.param) as device:
        yield device


@pytest.fixture
def buffer(device: NullDevice) -> tp.Buffer:
    return device.buffer_type.alloc(64)


# --- allocation --------------------------------------------------------------------------------


def test_buffer_knows_type_size_and_usage(device: NullDevice) -> None:
    buffer = device.buffer_type.alloc(64, tp.WEIGHTS)

    assert buffer.type is device.buffer_type
    assert buffer.size == 64
    assert buffer.usage is tp.WEIGHTS
    assert repr(buffer) == "<NullBuffer null:0, WEIGHTS 64 B>"


def test_buffer_of_nothing_is_a_buffer(device: NullDevice) -> None:
    buffer = device.buffer_type.alloc(0)

    buffer.fill(0)
    buffer.close()

    assert device.live_buffers == 0


def test_negative_size_is_refused(device: NullDevice) -> None:
    with pytest.raises(tp.ShapeError) as error:
        device.buffer_type.alloc(-1)

    assert str(error.value) == "null:0: a buffer of -1 bytes; sizes are not negative"


def test_out_of_memory_says_what_is_needed_and_what_there_is() -> None:
    device = NullDevice(memory=100)
    kept = device.buffer_type.alloc(60)

    with pytest.raises(tp.OutOfMemory) as error:
        device.buffer_type.alloc(50)

    assert str(error.value) == (
        "null:0: no room for a buffer of 50 bytes: 50 needed, 40 of 100 available; close other "
        "buffers"
    )
    assert isinstance(error.value, MemoryError)
    assert device.live_buffers == 1
    kept.close()


def test_closed_buffers_make_room() -> None:
    device = NullDevice(memory=100)
    device.buffer_type.alloc(60).close()

    device.buffer_type.alloc(100).close()

    assert device.memory() == Memory(free=100, total=100)


def test_buffer_beyond_the_largest_is_refused_before_the_driver_is_asked() -> None:
    device = NullDevice(max_size=100)

    with pytest.raises(BufferTooLarge) as error:
        device.buffer_type.alloc(101)

    assert str(error.value) == (
        "null:0: a buffer of 101 bytes exceeds the largest single buffer, 100 bytes; split it, or "
        "allocate tensors one by one"
    )
    assert device.log == []


def test_memory_error_of_a_driver_becomes_out_of_memory() -> None:
    class Full(BufferType):
        name = "full"

        def _alloc(self, size, usage):
            raise MemoryError("no pages")

    with pytest.raises(tp.OutOfMemory, match=r"full: 2\.0 KiB: no pages") as error:
        Full(NullDevice()).alloc(2048)

    assert isinstance(error.value.__cause__, MemoryError)


def test_planned_fault_hits_the_call_it_names(device: NullDevice) -> None:
    device.fail("alloc", at=2)
    first = device.buffer_type.alloc(1)

    with pytest.raises(tp.OutOfMemory, match="null:0: alloc failed as the test planned"):
        device.buffer_type.alloc(1)

    third = device.buffer_type.alloc(1)
    assert device.live_buffers == 2
    assert not first.closed
    assert not third.closed


def test_lost_device_does_nothing_any_more(device: NullDevice, buffer: tp.Buffer) -> None:
    device.lose()

    for use in (
        lambda: buffer.write(0, b"1"),
        lambda: buffer.read(0, 1),
        lambda: buffer.fill(0),
        lambda: device.buffer_type.alloc(1),
        device.open,
        device.memory,
    ):
        with pytest.raises(tp.DeviceLost, match="null:0: the device is gone; open another"):
            use()


# --- bytes -------------------------------------------------------------------------------------


def test_bytes_written_are_read_where_they_were_written(buffer: tp.Buffer) -> None:
    buffer.fill(0)

    buffer.write(8, np.arange(4, dtype=np.int32))

    np.testing.assert_array_equal(buffer.read(8, 16).view(np.int32), [0, 1, 2, 3])
    assert not buffer.read(0, 8).any()
    assert not buffer.read(24, 40).any()


@pytest.mark.parametrize(
    "data",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        np.frombuffer(b"abcd", np.uint8),
        np.frombuffer(b"abcd", np.dtype(">u4")),
        np.frombuffer(b"abcd", np.float16).reshape(1, 2),
        np.frombuffer(b"abcd", "V4"),
        np.array(np.frombuffer(b"abcd", np.int32)[0]),
    ],
    ids=lambda d: type(d).__name__ + getattr(getattr(d, "dtype", None), "str", ""),
)
def test_any_contiguous_host_memory_is_written_as_it_lies(buffer: tp.Buffer, data) -> None:
    buffer.write(0, data)

    assert buffer.read(0, 4).tobytes() == b"abcd"


def test_bytes_are_read_into_what_is_given(buffer: tp.Buffer) -> None:
    buffer.write(0, b"abcd")
    out = np.zeros(2, np.uint16)

    buffer.read_into(0, out)

    assert out.tobytes() == b"abcd"


def test_read_only_memory_is_not_read_into(buffer: tp.Buffer) -> None:
    with pytest.raises(tp.DTypeError) as error:
        buffer.read_into(0, memoryview(b"abcd"))

    assert str(error.value) == f"{buffer!r}: cannot read into read-only memory"


def test_host_memory_with_gaps_is_refused(buffer: tp.Buffer) -> None:
    with pytest.raises(tp.DTypeError) as error:
        buffer.write(0, np.zeros((4, 4), np.float32)[:, ::2])

    assert str(error.value) == (
        "transfer: host data must be C-contiguous; use numpy.ascontiguousarray()"
    )


def test_fill_sets_a_part_or_all(buffer: tp.Buffer) -> None:
    buffer.fill(1)
    buffer.fill(2, 10, 5)

    assert buffer.read(0, 64).tolist() == [1] * 10 + [2] * 5 + [1] * 49


@pytest.mark.parametrize("value", [-1, 256])
def test_fill_takes_a_byte(buffer: tp.Buffer, value: int) -> None:
    with pytest.raises(tp.ShapeError, match=f"fill with {value}; a byte is 0 to 255"):
        buffer.fill(value)


@pytest.mark.parametrize(
    ("use", "doing", "start", "end"),
    [
        (lambda b: b.write(61, b"1234"), "write", 61, 65),
        (lambda b: b.write(-1, b"1"), "write", -1, 0),
        (lambda b: b.read(64, 1), "read", 64, 65),
        (lambda b: b.read(0, -1), "read", 0, -1),
        (lambda b: b.read(0, 1 << 60), "read", 0, 1 << 60),
        (lambda b: b.read_into(60, bytearray(5)), "read", 60, 65),
        (lambda b: b.fill(0, 60, 5), "fill", 60, 65),
        (lambda b: b.fill(0, 65), "fill", 65, 64),
        (lambda b: b.write_2d(0, bytes(16), row=4, stride=21), "2D write", 0, 67),
        (lambda b: b.read_2d(0, 4, row=4, stride=21), "2D read", 0, 67),
        (lambda b: b.read_2d(0, -4, row=4, stride=4), "2D read", 0, -16),
    ],
)
def test_access_out_of_bounds_is_refused(buffer: tp.Buffer, use, doing, start, end) -> None:
    with pytest.raises(tp.ShapeError) as error:
        use(buffer)

    assert str(error.value) == (
        f"{buffer!r}: {doing} of bytes {start} to {end} is out of bounds; the buffer has 64 bytes"
    )


def test_access_to_nothing_does_nothing(device: NullDevice, buffer: tp.Buffer) -> None:
    device.log.clear()

    buffer.write(64, b"")
    buffer.read_into(64, bytearray())
    buffer.fill(0, 64, 0)
    buffer.write_2d(0, b"", row=4, stride=8)

    assert buffer.read(64, 0).size == 0
    assert buffer.read_2d(0, 0, row=4, stride=8).shape == (0, 4)
    assert device.log == []


# --- two dimensions ----------------------------------------------------------------------------


def test_rows_are_written_apart_and_read_together(buffer: tp.Buffer) -> None:
    buffer.fill(0)
    rows = np.arange(1, 13, dtype=np.uint8).reshape(3, 4)

    buffer.write_2d(2, rows, row=4, stride=10)

    assert buffer.read(0, 32).tolist() == [
        *[0, 0, 1, 2, 3, 4, 0, 0, 0, 0],
        *[0, 0, 5, 6, 7, 8, 0, 0, 0, 0],
        *[0, 0, 9, 10, 11, 12, 0, 0, 0, 0],
        *[0, 0],
    ]
    np.testing.assert_array_equal(buffer.read_2d(2, 3, row=4, stride=10), rows)


def test_last_row_may_end_with_the_buffer(buffer: tp.Buffer) -> None:
    buffer.write_2d(0, bytes(8), row=4, stride=60)

    assert buffer.read_2d(0, 2, row=4, stride=60).tolist() == [[0] * 4] * 2


@pytest.mark.parametrize(("size", "row", "stride"), [(8, 4, 3), (8, 0, 4), (9, 4, 8)])
def test_rows_that_overlap_or_do_not_fit_are_refused(buffer, size, row, stride) -> None:
    with pytest.raises(tp.ShapeError) as error:
        buffer.write_2d(0, bytes(size), row=row, stride=stride)

    assert str(error.value) == (
        f"2D access: {size} bytes in rows of {row}, {stride} apart, do not fit"
    )


# --- host memory -------------------------------------------------------------------------------


def test_host_memory_is_shared(host: NullDevice) -> None:
    buffer = host.buffer_type.alloc(4)

    buffer.host()[:] = [1, 2, 3, 4]

    assert buffer.read(0, 4).tolist() == [1, 2, 3, 4]


def test_private_memory_cannot_be_seen(null: NullDevice) -> None:
    with pytest.raises(NotAllocated, match="the host cannot see null:0 memory"):
        null.buffer_type.alloc(4).host()


class Wrapped(BufferType):
    """Host memory of another owner."""

    name = "wrapped"
    is_host = True

    def _alloc(self, size, usage):
        return HostBuffer(self, np.zeros(size, np.uint8), usage)


def test_host_buffer_reads_writes_fills_and_copies(null: NullDevice) -> None:
    buffer, other = Wrapped(null).alloc(8), Wrapped(null).alloc(8)

    other.fill(7)
    buffer.write(2, b"ab")
    copy_bytes(tp.Place(other, 0), tp.Place(buffer, 5), 3)

    assert buffer.read(0, 8).tolist() == [0, 0, 97, 98, 0, 7, 7, 7]
    assert buffer.host().tobytes() == buffer.read(0, 8).tobytes()


@pytest.mark.parametrize("use", [lambda b: b.write(0, b"1"), lambda b: b.fill(0)])
def test_read_only_host_memory_is_not_written(null: NullDevice, use) -> None:
    buffer = HostBuffer(Wrapped(null), np.frombuffer(b"file", np.uint8))

    with pytest.raises(tp.Unsupported, match="is read-only memory"):
        use(buffer)

    assert buffer.read(0, 4).tobytes() == b"file"


def test_a_buffer_without_memory_can_be_filled_and_not_read(null: NullDevice) -> None:
    with UnallocatedBuffer(null.buffer_type, 64) as buffer:
        buffer.fill(0)

        with pytest.raises(NotAllocated, match="nothing can be read from it"):
            buffer.read(0, 8)


def test_arrays_of_a_closed_host_buffer_stay_valid(null: NullDevice) -> None:
    buffer = Wrapped(null).alloc(4)
    array = buffer.host()

    buffer.close()

    assert array.tolist() == [0, 0, 0, 0]


def test_multibuffer_resets_every_part(null: NullDevice) -> None:
    told: list[int] = []

    class Told(NullBuffer):
        def reset(self) -> None:
            told.append(self.size)

    parts = [Told(null.buffer_type, size, tp.COMPUTE) for size in (64, 128)]
    for part in parts:
        null.take(part.size)

    MultiBuffer(parts).reset()

    assert told == [64, 128]


# --- usage -------------------------------------------------------------------------------------


def test_buffer_is_told_when_its_usage_changes(null: NullDevice) -> None:
    told: list[BufferUsage] = []

    class Curious(HostBuffer):
        def _usage_changed(self) -> None:
            told.append(self.usage)

    buffer = Curious(Wrapped(null), np.zeros(4, np.uint8))

    buffer.usage = tp.WEIGHTS

    assert told == [tp.WEIGHTS]


# --- several as one ----------------------------------------------------------------------------


def test_multi_buffer_speaks_for_its_parts(device: NullDevice) -> None:
    parts = [device.buffer_type.alloc(size) for size in (16, 48)]
    whole = MultiBuffer(parts)

    whole.usage = tp.WEIGHTS
    whole.fill(3)

    assert whole.size == 64
    assert whole.type is device.buffer_type
    assert whole.parts == tuple(parts)
    assert [part.usage for part in parts] == [tp.WEIGHTS] * 2
    assert all((part.read(0, part.size) == 3).all() for part in parts)
    assert repr(whole) == "<MultiBuffer null:0, 2 parts, WEIGHTS 64 B>"


def test_closing_a_multi_buffer_closes_its_parts(device: NullDevice) -> None:
    parts = [device.buffer_type.alloc(16) for _ in range(2)]
    whole = MultiBuffer(parts)
    parts[0].close()

    whole.close()

    assert [part.closed for part in parts] == [True, True]
    assert device.live_buffers == 0
    assert repr(whole) == "<MultiBuffer null:0, 2 parts, closed>"


def test_multi_buffer_of_nothing_or_of_two_types_is_refused(device: NullDevice) -> None:
    with pytest.raises(tp.ShapeError, match="MultiBuffer: no parts given; at least one is needed"):
        MultiBuffer([])
    with NullDevice("other:0") as other, pytest.raises(tp.ShapeError, match="of several types"):
        MultiBuffer([device.buffer_type.alloc(1), other.buffer_type.alloc(1)])


# --- helpers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (278 << 20, "278.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert human(size) == text


def test_bytes_of_an_array_are_the_array_itself() -> None:
    array = np.zeros(4, np.float32)

    as_bytes(array)[0:4] = np.float32(1).tobytes()

    assert array[0] == 1


class Stingy(NullBufferType):
    def _alloc_size(self, tensor: tp.Tensor) -> int:
        return tensor.nbytes - 1


def test_buffer_type_that_gives_too_few_bytes_is_told_so() -> None:
    kind = Stingy(NullDevice(), is_host=False, max_size=1 << 20)

    with pytest.raises(ShapeError, match=r"says that .* takes 15 bytes, and it has 16; this is an"):
        kind.alloc_size(tp.input("x", (4,), tp.F32))
