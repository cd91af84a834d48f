"""`MemoryTests`: buffers, limits, filling and layouts of a device's memory."""

import sys

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Array,
    BufferType,
    BufferUsage,
    Device,
    DeviceType,
    MultiBuffer,
    Tensor,
    allocate,
    leaf,
    transfer,
)
from tensorplug.device.placing import LinearAllocator, buffer_sizes
from tensorplug.dtypes import DTYPES
from tensorplug.errors import BufferTooLarge
from tensorplug_testing.suites.host_memory import HostMemoryTests
from tensorplug_testing.suites.work import SIZES, UNTOUCHED, Rig, numbers

SHAPES = ((), (1,), (3,), (0, 4), (5, 7), (3, 2, 5, 7), (1, 1000))


class MemoryTests(HostMemoryTests):
    """Alignment, sizes, limits, exhaustion, filling, usage, and access by the host."""

    most_buffers = 64
    """The most buffers that a test makes to use up the device's memory."""

    # --- sizes -----------------------------------------------------------------------------

    def test_device_computes_in_its_own_memory(self, device: Device) -> None:
        assert device.supports_buffer_type(device.buffer_type), (
            f"{device.name} does not support buffer_type, the memory it computes in"
        )

    def test_memory_belongs_to_the_device(self, device: Device, memory: BufferType) -> None:
        assert memory.device is device

    def test_free_memory_is_part_of_all_memory(self, device: Device) -> None:
        free, total = device.memory().free, device.memory().total

        assert 0 <= free <= total

    def test_alignment_is_a_power_of_two(self, memory: BufferType) -> None:
        assert memory.alignment.bit_count() == 1, f"alignment is {memory.alignment}"

    @pytest.mark.parametrize("size", SIZES)
    def test_buffer_has_the_bytes_asked_for(self, work: Rig, memory: BufferType, size: int) -> None:
        size = min(size, memory.max_size)
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8)

        buffer = work.keep(memory.alloc(size))
        buffer.write(0, data)

        assert buffer.type is memory
        assert buffer.size >= size
        np.testing.assert_array_equal(buffer.read(0, size), data)

    def test_buffers_have_memory_of_their_own(self, work: Rig, memory: BufferType) -> None:
        buffers = [work.alloc(min(100, memory.max_size), memory) for _ in range(50)]

        for i, buffer in enumerate(buffers):
            buffer.fill(i)

        for i, buffer in enumerate(buffers):
            assert set(buffer.read(0, buffer.size).tolist()) == {i}

    @pytest.mark.parametrize("size", SIZES)
    def test_host_memory_starts_at_a_multiple_of_its_alignment(
        self, work: Rig, memory: BufferType, size: int
    ) -> None:
        if not memory.is_host:
            pytest.skip(f"{memory.name} memory has no address that the host sees")
        buffer = work.keep(memory.alloc(min(size, memory.max_size)))

        assert buffer.host().ctypes.data % memory.alignment == 0

    def test_tensor_takes_its_own_bytes_at_least(self, memory: BufferType) -> None:
        tensors = [
            leaf("x", _in_blocks(shape, dtype), dtype) for dtype in DTYPES for shape in SHAPES
        ]

        for tensor in filter(memory.supports, tensors):
            assert memory.alloc_size(tensor) >= tensor.nbytes

    def test_tensors_in_one_buffer_do_not_touch_each_other(
        self, work: Rig, memory: BufferType
    ) -> None:
        specs = [leaf(str(n), (n,), tp.F32) for n in (1, 3, 17, 64, 5, 0, 33)]
        linear = LinearAllocator(work.alloc(min(4096, memory.max_size), memory))
        placed = [linear.place(spec) for spec in specs]

        for i, tensor in enumerate(placed):
            transfer.write(tensor, numbers(tensor.size, seed=i))

        for i, tensor in enumerate(placed):
            np.testing.assert_array_equal(transfer.read(tensor), numbers(tensor.size, seed=i))

    @pytest.mark.parametrize("steps", [1, 3])
    def test_ops_work_at_any_aligned_offset(self, work: Rig, device: Device, steps: int) -> None:
        memory, data = device.buffer_type, numbers(5)
        gap = steps * max(memory.alignment, 64)
        buffer = work.alloc(6 * gap, memory)
        x = tp.input("x", (5,), tp.F32)
        y = work.chain(x)
        places = {x: tp.Place(buffer, gap), y: tp.Place(buffer, 4 * gap)}
        bound = tp.Part.of(tp.Graph(y), tp.Bindings(places))
        transfer.write(x, data, bound.bindings)

        work.open().compute(bound)

        np.testing.assert_array_equal(transfer.read(y, bound.bindings), work.after(data))
        np.testing.assert_array_equal(transfer.read(x, bound.bindings), data)
        around = np.delete(buffer.read(0, 6 * gap), [*_span(gap, 20), *_span(4 * gap, 20)])
        assert set(around.tolist()) == {UNTOUCHED}, "bytes outside the tensors were changed"

    # --- limits ----------------------------------------------------------------------------

    def test_buffer_beyond_the_largest_is_refused(self, memory: BufferType) -> None:
        with pytest.raises(BufferTooLarge) as error:
            memory.alloc(memory.max_size + 1)

        assert str(error.value) == (
            f"{memory.name}: a buffer of {memory.max_size + 1} bytes exceeds the largest single "
            f"buffer, {memory.max_size} bytes; split it, or allocate tensors one by one"
        )

    def test_tensors_beyond_the_largest_buffer_lie_in_several(
        self, work: Rig, memory: BufferType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = _lower(memory, monkeypatch)
        elements = limit // 16
        specs = [leaf(str(i), (elements,), tp.F32) for i in range(10)]

        tensors, buffers = allocate(specs, memory)
        work.keep(buffers)

        assert len(buffers.parts) > 1
        assert [part.size for part in buffers.parts] == buffer_sizes(specs, memory)
        assert all(part.size <= limit for part in buffers.parts)
        for i, tensor in enumerate(tensors):
            transfer.write(tensor, numbers(elements, seed=i))
        for i, tensor in enumerate(tensors):
            np.testing.assert_array_equal(transfer.read(tensor), numbers(elements, seed=i))

    def test_ops_read_and_write_tensors_in_several_buffers(
        self, work: Rig, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = _lower(device.buffer_type, monkeypatch)
        elements = limit // 8
        x = tp.input("x", (elements,), tp.F32)
        nodes = [work.chain(x, n) for n in (1, 2, 3)]
        planned = work.plan(nodes)

        results = planned.compute({x: numbers(elements)})

        for n, result in zip((1, 2, 3), results, strict=True):
            np.testing.assert_array_equal(result, work.after(numbers(elements), n))

    def test_out_of_memory_is_raised_and_leaves_all_usable(
        self, work: Rig, device: Device, memory: BufferType
    ) -> None:
        data = numbers(16)
        kept = work.place(data, memory)

        with pytest.raises(tp.OutOfMemory) as error:
            _use_up(work, device, memory, self.most_buffers)
        work_after = work.place(2 * data, memory)

        assert str(error.value), "the error says nothing; name the sizes"
        np.testing.assert_array_equal(transfer.read(kept), data)
        np.testing.assert_array_equal(transfer.read(work_after), 2 * data)

    def test_device_computes_after_it_was_out_of_memory(self, work: Rig, device: Device) -> None:
        x = tp.input("x", (16,), tp.F32)
        planned = work.plan(work.chain(x))
        probe = Rig(device)

        with pytest.raises(tp.OutOfMemory):
            _use_up(probe, device, device.buffer_type, self.most_buffers)
        probe.close()

        np.testing.assert_array_equal(planned.compute({x: numbers(16)})[0], work.after(numbers(16)))

    def test_closed_buffers_make_room(self, device: Device, memory: BufferType) -> None:
        total = device.memory().total or 1 << 30
        size = min(memory.max_size, max(total // 4, 1), 16 << 20)

        for _ in range(50):
            with memory.alloc(size) as buffer:
                buffer.write(size - 1, b"x")

    def test_failed_allocation_of_many_gives_back_what_it_took(
        self, device: Device, memory: BufferType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = _lower(memory, monkeypatch)
        before = device.children
        specs = [leaf(str(i), (limit // 8,), tp.F32) for i in range(3)]
        specs.append(leaf("large", (limit,), tp.F32))

        with pytest.raises(tp.OutOfMemory):
            allocate(specs, memory)

        assert device.children == before

    # --- filling ---------------------------------------------------------------------------

    @pytest.mark.parametrize("value", [0, 0xFF])
    @pytest.mark.parametrize(("offset", "size"), [(0, 300), (0, 1), (1, 7), (64, 64), (299, 1)])
    def test_fill_sets_the_bytes_asked_for_and_no_other(
        self, work: Rig, memory: BufferType, offset: int, size: int, value: int
    ) -> None:
        buffer = work.alloc(300, memory)
        wanted = np.full(300, UNTOUCHED, np.uint8)
        wanted[offset : offset + size] = value

        buffer.fill(value, offset, size)

        np.testing.assert_array_equal(buffer.read(0, 300), wanted)

    def test_fill_sets_all_unless_told_otherwise(self, work: Rig, memory: BufferType) -> None:
        buffer = work.alloc(1000, memory)

        buffer.fill(7)
        assert set(buffer.read(0, 1000).tolist()) == {7}
        buffer.fill(9, 500)

        assert buffer.read(499, 2).tolist() == [7, 9]
        assert buffer.read(buffer.size - 1, 1).tolist() == [9]

    def test_several_buffers_are_filled_and_closed_as_one(
        self, work: Rig, memory: BufferType
    ) -> None:
        parts = [work.alloc(100, memory) for _ in range(3)]
        buffers = MultiBuffer(parts)

        buffers.fill(3)
        read = [set(part.read(0, part.size).tolist()) for part in parts]
        buffers.close()

        assert read == [{3}] * 3
        assert all(part.closed for part in parts)

    def test_reset_buffer_takes_tensors_anew(self, work: Rig, memory: BufferType) -> None:
        buffer = work.alloc(256, memory)
        spec = leaf("x", (16,), tp.F32)

        for i in range(200):
            buffer.reset()
            tensor = LinearAllocator(buffer).place(spec)
            transfer.write(tensor, numbers(16, seed=i))

        np.testing.assert_array_equal(transfer.read(tensor), numbers(16, seed=199))

    # --- usage -----------------------------------------------------------------------------

    @pytest.mark.parametrize("usage", BufferUsage, ids=lambda usage: usage.value)
    def test_buffer_knows_its_usage(
        self, work: Rig, memory: BufferType, usage: BufferUsage
    ) -> None:
        buffer = work.keep(memory.alloc(64, usage))

        assert buffer.usage is usage

    def test_change_of_usage_keeps_the_data(self, work: Rig, memory: BufferType) -> None:
        buffer = work.alloc(64, memory)

        for usage in BufferUsage:
            buffer.usage = usage
            assert buffer.usage is usage

        assert set(buffer.read(0, 64).tolist()) == {UNTOUCHED}

    # --- nothing ---------------------------------------------------------------------------

    def test_buffer_of_no_bytes_is_a_buffer(self, work: Rig, memory: BufferType) -> None:
        buffer = work.keep(memory.alloc(0))

        buffer.write(0, b"")
        buffer.fill(0, 0, 0)

        assert buffer.read(0, 0).size == 0
        assert not buffer.closed

    def test_tensor_of_no_elements_is_written_and_read(self, work: Rig, memory: BufferType) -> None:
        tensor = work.place(np.zeros((0, 4), np.float32), memory)

        transfer.write(tensor, np.zeros((0, 4), np.float32))

        assert transfer.read(tensor).shape == (0, 4)

    def test_negative_size_is_refused(self, memory: BufferType) -> None:
        with pytest.raises(tp.ShapeError) as error:
            memory.alloc(-1)

        assert str(error.value) == f"{memory.name}: a buffer of -1 bytes; sizes are not negative"

    # --- memory with layouts of its own ----------------------------------------------------

    def test_extra_memory_takes_tensors_in_bytes_of_its_own(
        self, work: Rig, device: Device
    ) -> None:
        # Enough rows for layouts that store several rows in one unit.
        specs = [leaf("w", _in_blocks((64, 256), dtype), dtype) for dtype in DTYPES]

        for kind in device.extra_buffer_types:
            taken = [spec for spec in specs if kind.supports(spec)]
            assert taken, f"{kind.name} takes no tensor of any type"
            _, buffers = allocate(taken, kind, usage=BufferUsage.WEIGHTS)
            work.keep(buffers)
            assert buffers.usage is BufferUsage.WEIGHTS

    def test_extra_memory_gives_back_what_was_written(self, work: Rig, device: Device) -> None:
        for kind in device.extra_buffer_types:
            tensors = [
                work.place(array, kind)
                for array in (numbers(4, 64), numbers(4, 64).astype(np.float16))
                if kind.supports(_like(array))
            ]
            for tensor in tensors:
                wanted = numbers(4, 64).astype(tensor.dtype.storage)
                np.testing.assert_array_equal(transfer.read(tensor), wanted)


def _in_blocks(shape: tuple[int, ...], dtype: tp.DType) -> tuple[int, ...]:
    """`shape` with rows of whole blocks."""
    if not dtype.is_block:
        return shape
    row = shape[-1] if shape else 1
    return (*shape[:-1], -(-row // dtype.block) * dtype.block)


def _like(array: Array) -> Tensor:
    return leaf("x", array.shape, tp.dtype(array.dtype))


def _span(start: int, size: int) -> range:
    return range(start, start + size)


def _lower(memory: BufferType, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the largest buffer of `memory` to 64 KiB for this test."""
    limit = 1 << 16
    if memory.max_size <= limit:
        return memory.max_size
    try:
        monkeypatch.setattr(memory, "max_size", limit)
    except AttributeError:
        pytest.skip(f"the largest buffer of {memory.name} cannot be lowered for a test")
    return limit


def _use_up(work: Rig, device: Device, memory: BufferType, most: int) -> None:
    """Allocate until OutOfMemory is raised. Skips the test if that does not happen."""
    total = device.memory().total
    wanted = 2 * total if total else sys.maxsize
    if device.type is DeviceType.CPU:
        # Systems grant more memory than they have, but not the whole address space.
        wanted = sys.maxsize - (1 << 20)
    if memory.max_size >= wanted:
        # One buffer larger than the device's memory. If the driver grants it, no page was touched.
        work.keep(memory.alloc(wanted))
        return
    if memory.is_host or wanted // memory.max_size > most:
        pytest.skip(f"{memory.name}: it takes too many buffers to use up the memory")
    for _ in range(wanted // memory.max_size + 1):
        work.keep(memory.alloc(memory.max_size))
    pytest.skip(f"{memory.name}: the driver gives more memory than the device has")
