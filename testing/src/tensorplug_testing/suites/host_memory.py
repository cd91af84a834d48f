"""`HostMemoryTests`: memory that both the device and the host can access."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import BufferType, Device, SupportsHostImport, leaf, place_in
from tensorplug.errors import BufferTooLarge, NotAllocated
from tensorplug_testing.suites.abilities import needs
from tensorplug_testing.suites.work import SIZES, Rig, Suite, numbers


class HostMemoryTests(Suite):
    """Shared memory has the same bytes on both sides; private memory is refused to the host."""

    def test_host_shares_memory_that_it_sees(self, work: Rig, memory: BufferType) -> None:
        if not memory.is_host:
            pytest.skip(f"the host does not see {memory.name} memory")
        buffer = work.alloc(100, memory)

        host = buffer.host()
        host[10] = 1
        buffer.write(20, b"\x02")

        assert host.dtype == np.uint8
        assert host.shape == (buffer.size,)
        assert buffer.read(10, 1).tolist() == [1]
        assert host[20] == 2

    def test_host_does_not_see_private_memory(self, work: Rig, memory: BufferType) -> None:
        if memory.is_host:
            pytest.skip(f"the host sees {memory.name} memory")
        tensor = work.place(numbers(4), memory)
        assert tensor.place is not None
        buffer = tensor.place.buffer

        with pytest.raises(NotAllocated) as error:
            tensor.numpy()

        assert str(error.value) == (
            f"{buffer!r}: the host cannot see {memory.name} memory; read() copies it"
        )

    def test_device_and_host_work_on_the_same_bytes(self, work: Rig, device: Device) -> None:
        if not device.buffer_type.is_host:
            pytest.skip(f"the host does not see {device.name} memory")
        x = work.place(np.zeros(8, np.float32))
        planned = work.plan(work.chain(x))
        y = planned.bound.outputs[0]
        place = planned.bound.bindings.where(y)

        x.numpy()[...] = numbers(8)
        planned.compute()

        seen = place.buffer.host()[place.offset : place.offset + 32].view(np.float32)
        np.testing.assert_array_equal(seen, work.after(numbers(8)))

    @needs("host_buffer")
    def test_host_buffers_are_shared_with_the_host(self, work: Rig, device: Device) -> None:
        kind = _host_buffers(device)
        buffers = [work.alloc(size, kind) for size in SIZES]

        for i, buffer in enumerate(buffers):
            buffer.host()[...] = i
            buffer.fill(99, 0, 1)

        assert kind.is_host, f"the host cannot see {kind.name}, which host_buffer_type gives"
        for i, (size, buffer) in enumerate(zip(SIZES, buffers, strict=True)):
            assert buffer.size >= size
            past = buffer.host().ctypes.data % kind.alignment
            assert past == 0, f"{buffer} starts {past} B past a multiple of {kind.alignment}"
            assert buffer.read(0, size).tolist() == [99] + [i] * (size - 1)

    @needs("host_buffer")
    def test_host_buffer_beyond_the_largest_is_refused(self, device: Device) -> None:
        kind = _host_buffers(device)

        with pytest.raises(BufferTooLarge):
            kind.alloc(kind.max_size + 1)

    @needs("host_import")
    def test_imported_memory_is_the_hosts_own(self, work: Rig, device: Device) -> None:
        assert isinstance(device, SupportsHostImport)
        array = numbers(1024)

        buffer = work.keep(device.import_host(array))
        array[7] = 1000

        assert buffer.read(28, 4).view(np.float32).tolist() == [1000]
        assert device.supports_buffer_type(buffer.type)

    @needs("host_import")
    def test_imported_memory_is_computed_on(self, work: Rig, device: Device) -> None:
        assert isinstance(device, SupportsHostImport)
        data = numbers(1024)
        buffer = work.keep(device.import_host(data))
        x = place_in(leaf("x", (1024,), tp.F32), buffer, 0)
        planned = work.plan(work.chain(x))

        np.testing.assert_array_equal(planned.compute()[0], work.after(data))


def _host_buffers(device: Device) -> BufferType:
    kind = device.host_buffer_type
    assert kind is not None
    return kind
