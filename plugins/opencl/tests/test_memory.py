"""Memory of a device: its limits, and host memory that it computes on."""

import numpy as np
import pyopencl as cl
import pytest

import tensorplug as tp
from tensorplug.device import DeviceLost
from tensorplug_emulator.suites.devices import MemoryTests
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.memory import LARGE

DATA = np.arange(64, dtype=np.float32)


class TestMemory(MemoryTests):
    """What every SIMT device says of memory."""


@pytest.mark.parametrize(
    "data",
    [DATA, np.frombuffer(DATA.tobytes(), np.float32)],
    ids=["to read and write", "to read only"],
)
def test_kernel_sees_what_the_host_wrote_into_imported_memory(device, stream, data):
    with device.import_host(data) as buffer:
        x = tp.Tensor(
            tp.F32, (64, 1, 1, 1), (4, 256, 256, 256), 1, name="x", place=tp.Place(buffer, 0)
        )
        y = tp.scale(x, scale=2.0)
        with tp.Scheduler([stream]).schedule(y) as run:
            assert run.run()[y].tolist() == (2 * data).tolist()


def test_kernel_reads_and_writes_large_memory_to_its_end(device, stream):
    size = LARGE // 4 + 3
    data = np.arange(size, dtype=np.float32)
    with device.buffer_type.alloc(4 * size) as buffer:
        buffer.write(0, data)
        x = tp.Tensor(
            tp.F32, (size, 1, 1, 1), (4, *[4 * size] * 3), 1, name="x", place=tp.Place(buffer, 0)
        )
        y = tp.scale(x, scale=2.0)
        with tp.Scheduler([stream]).schedule(y) as run:
            assert np.array_equal(run.run()[y], 2 * data)


@pytest.fixture
def read_only(device, tmp_path):
    """An imported file that is mapped to read only: a write into it would end the process."""
    DATA.tofile(tmp_path / "data")
    with device.import_host(np.memmap(tmp_path / "data", np.uint8, mode="r")) as buffer:
        yield buffer


def test_imported_memory_to_read_only_refuses_writes_of_the_host(stream, read_only):
    data, row = np.zeros(16, np.uint8), np.zeros((2, 8), np.uint8)
    writes = {
        "write": lambda: read_only.write(0, data),
        "fill": lambda: read_only.fill(0),
        "2D write": lambda: read_only.write_2d(0, row, row=8, stride=16),
        "queued write": lambda: stream.write_async(read_only, 0, data.data),
    }
    for write in writes.values():
        with pytest.raises(tp.Unsupported, match="is read-only memory"):
            write()


def test_imported_memory_to_read_only_refuses_kernels_that_write_it(stream, read_only):
    place = tp.Place(read_only, 0)
    table = tp.Tensor(tp.F32, (64, 1, 1, 1), (4, 256, 256, 256), 1, name="table", place=place)
    copy = tp.cpy(tp.input("x", (64,), tp.F32), table)

    with (
        pytest.raises(tp.Unsupported, match="writes into read-only memory; copy its root first"),
        tp.Scheduler([stream]).schedule(tp.Graph([copy], effects=[copy])) as run,
    ):
        run.run()


def test_driver_that_went_away_is_reported_as_a_lost_device(driver, monkeypatch):
    def gone(devices):
        raise cl.RuntimeError("Context", -2)  # CL_DEVICE_NOT_AVAILABLE

    monkeypatch.setattr(cl, "Context", gone)
    with OpenCLDevice("opencl:0", driver) as device, pytest.raises(DeviceLost, match="opencl:0"):
        device.open()
