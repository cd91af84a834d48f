"""The transfer suite passes on sound devices and catches those with a fault."""

from functools import partial

import numpy as np
import pytest

from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice
from tensorplug_testing.suites.transfer import TransferTests


class TestTransfer(TransferTests):
    """Every test of the suite on every device of the folder."""


class Faulty(NullDevice):
    """A device whose memory and streams have members replaced."""

    def __init__(self, of_buffer: dict, of_stream: dict, **options) -> None:
        buffer = type("FaultyBuffer", (NullBuffer,), of_buffer)
        self.buffer_type_class = type("FaultyType", (NullBufferType,), {"buffer_class": buffer})
        super().__init__(**options)
        self.backend_class = type("FaultyStream", (self.backend_class,), of_stream)


def with_memory(**members):
    return partial(Faulty, members, {})


def with_stream(**members):
    return partial(Faulty, {}, members, asynchronous=True)


def read_from_the_next_byte(self, offset, out):
    NullBuffer._read(self, min(offset + 1, self.size - out.nbytes), out)


def read_without_the_last_byte(self, offset, out):
    NullBuffer._read(self, offset, out[:-1])


def keep_what_was_given(self, offset, data):
    """The host's own memory is read again by each read."""
    self.later = (offset, data)


def read_what_was_given(self, offset, out):
    start, data = getattr(self, "later", (0, b""))
    NullBuffer._write(self, start, memoryview(data))
    NullBuffer._read(self, offset, out)


def write_rows_packed(self, offset, data, row, stride):
    self._write(offset, data)


def read_rows_one_apart(self, offset, out, row, stride):
    NullBuffer._read_2d(self, offset, out, row, max(stride - 1, row))


def copy_with_offsets_swapped(self, source, start, offset, size):
    swapped = offset + size <= source.size and start + size <= self.size
    return NullBuffer._copy_from(
        self, source, *((offset, start) if swapped else (start, offset)), size
    )


def copy_bytewise_forward(self, source, start, offset, size):
    for i in range(size):
        self.take_copy(source, start + i, offset + i, 1)
    return True


def claim_a_copy(self, source, start, offset, size):
    return True


def write_at_once(self, buffer, offset, data):
    buffer.write(offset, data)


def read_at_once(self, buffer, offset, out):
    buffer.read_into(offset, out)


def write_from_the_start(self, buffer, offset, data):
    self.queue(partial(buffer.write, 0, data))


def copy_without_waiting(self, source, start, target, size):
    self.queue(partial(target.buffer.take_copy, start.buffer, start.offset, target.offset, size))
    return True


def write_doubles_as_floats(self, tensor, offset, data):
    is_double = tensor.dtype.name == "f64"
    rounded = (
        np.frombuffer(data, np.float64).astype(np.float32).astype(np.float64) if is_double else data
    )
    self.write(offset, rounded)


FAULTS = {
    "read from the next byte": (
        with_memory(_read=read_from_the_next_byte),
        "test_bytes_are_read_from_there",
    ),
    "read without the last byte": (
        with_memory(_read=read_without_the_last_byte),
        "test_large_transfers_arrive_whole",
    ),
    "host memory read again later": (
        with_memory(_write=keep_what_was_given, _read=read_what_was_given),
        "test_host_memory_may_change_once_it_is_written",
    ),
    "rows written without their stride": (
        with_memory(_write_2d=write_rows_packed),
        "test_part_of_a_tensor_is_written_and_the_rest_is_left",
    ),
    "rows read with a wrong stride": (
        with_memory(_read_2d=read_rows_one_apart),
        "test_rows_are_written_apart_and_read_together",
    ),
    "copy with its offsets swapped": (
        with_memory(_copy_from=copy_with_offsets_swapped),
        "test_bytes_are_copied_out",
    ),
    "copy that runs over its own source": (
        with_memory(_copy_from=copy_bytewise_forward),
        "test_bytes_are_copied_within_one_buffer_even_where_they_overlap",
    ),
    "copy claimed and not made": (
        with_memory(_copy_from=claim_a_copy),
        "test_tensors_are_copied_out_and_in",
    ),
    "queued write done at once": (
        with_stream(write_async=write_at_once),
        "test_transfers_on_one_stream_keep_their_order",
    ),
    "queued read done at once": (
        with_stream(read_async=read_at_once),
        "test_transfers_on_one_stream_keep_their_order",
    ),
    "queued write at another offset": (
        with_stream(write_async=write_from_the_start),
        "test_transfers_on_a_stream_touch_what_they_name",
    ),
    "queued write to a tensor at another offset": (
        with_stream(write_async=write_from_the_start),
        "test_part_of_a_tensor_is_written_in_order_and_its_neighbours_are_left",
    ),
    "queued read of a tensor done at once": (
        with_stream(read_async=read_at_once),
        "test_part_of_a_tensor_is_read_in_order",
    ),
    "f64 rounded on the way": (
        with_memory(write_tensor=write_doubles_as_floats),
        "test_tensors_of_every_type_come_back_bit_by_bit",
    ),
}


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, test = FAULTS[fault]

    assert failures(TransferTests, make_device, test) == {test}
