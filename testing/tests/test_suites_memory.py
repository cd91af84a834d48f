"""The memory suite passes on sound devices and catches those with a fault."""

from functools import partial

import pytest

import tensorplug as tp
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice
from tensorplug_testing.suites.memory import MemoryTests


class TestMemory(MemoryTests):
    """Every test of the suite on every device of the folder."""


def with_memory(*, of_type: dict | None = None, of_buffer: dict | None = None, **options):
    """A device whose memory has members replaced."""
    buffer = type("FaultyBuffer", (NullBuffer,), of_buffer or {})
    kind = type("FaultyType", (NullBufferType,), {"buffer_class": buffer, **(of_type or {})})
    faulty = type("FaultyDevice", (NullDevice,), {"buffer_type_class": kind})
    return partial(faulty, **options)


def odd_start(self, size, usage):
    buffer = NullBufferType._alloc(self, size + 1, usage)
    buffer._memory = buffer._memory[1:]
    return buffer


def short(self, size, usage):
    return NullBufferType._alloc(self, max(size - 1, 1), usage)


def swallowing(self, size, usage):
    try:
        return NullBufferType._alloc(self, size, usage)
    except tp.OutOfMemory:
        return NullBufferType._alloc(self, 64, usage)


def ruinous(self, size, usage):
    try:
        return NullBufferType._alloc(self, size, usage)
    except tp.OutOfMemory:
        self.device.lose()
        raise


def write_one_late(self, offset, data):
    NullBuffer._write(self, min(offset + 1, self.size - data.nbytes), data)


def fill_one_short(self, offset, size, value):
    NullBuffer._fill(self, offset, size - 1, value)


def fill_one_far(self, offset, size, value):
    NullBuffer._fill(self, offset, min(size + 1, self.size - offset), value)


def host_copy(self):
    return self._memory.copy()


def forgetful(self):
    self._memory[...] = 0


def kept(self):
    """Give nothing back."""


def shared_memory():
    """Buffers of one size get the same bytes."""
    pool = {}

    def alloc(self, size, usage):
        buffer = NullBufferType._alloc(self, size, usage)
        buffer._memory = pool.setdefault(size, buffer._memory)
        return buffer

    return alloc


FAULTS = {
    "alignment that is not a power of two": (
        with_memory(of_type={"alignment": 48}),
        "test_alignment_is_a_power_of_two",
    ),
    "memory off the alignment": (
        with_memory(of_type={"_alloc": odd_start}, host=True),
        "test_host_memory_starts_at_a_multiple_of_its_alignment",
    ),
    "buffer too short": (
        with_memory(of_type={"_alloc": short}),
        "test_buffer_has_the_bytes_asked_for",
    ),
    "out of memory swallowed": (
        with_memory(of_type={"_alloc": swallowing}),
        "test_out_of_memory_is_raised_and_leaves_all_usable",
    ),
    "device lost when out of memory": (
        with_memory(of_type={"_alloc": ruinous}),
        "test_device_computes_after_it_was_out_of_memory",
    ),
    "buffers that share memory": (
        with_memory(of_type={"_alloc": shared_memory()}),
        "test_buffers_have_memory_of_their_own",
    ),
    "write off by one": (
        with_memory(of_buffer={"_write": write_one_late}),
        "test_tensors_in_one_buffer_do_not_touch_each_other",
    ),
    "fill one byte short": (
        with_memory(of_buffer={"_fill": fill_one_short}),
        "test_fill_sets_all_unless_told_otherwise",
    ),
    "fill one byte too far": (
        with_memory(of_buffer={"_fill": fill_one_far}),
        "test_fill_sets_the_bytes_asked_for_and_no_other",
    ),
    "host sees a copy": (
        with_memory(of_buffer={"host": host_copy}, host=True),
        "test_host_shares_memory_that_it_sees",
    ),
    "host sees what it should not": (
        with_memory(of_buffer={"host": host_copy}),
        "test_host_does_not_see_private_memory",
    ),
    "usage change clears": (
        with_memory(of_buffer={"_usage_changed": forgetful}),
        "test_change_of_usage_keeps_the_data",
    ),
    "closed buffer keeps its memory": (
        with_memory(of_buffer={"_close": kept}, memory=1 << 22),
        "test_closed_buffers_make_room",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, test = FAULTS[fault]

    assert failures(MemoryTests, make_device, test) == {test}
