"""Memory of a device: its limits, and host memory that it computes on."""

import numpy as np
import pyopencl as cl
import pytest

import tensorplug as tp
from tensorplug.device import DeviceLost, OutOfMemory
from tensorplug_opencl.device import OpenCLDevice

DATA = np.arange(64, dtype=np.float32)


def test_memory_that_is_not_there_is_reported_with_both_sizes(device, monkeypatch):
    monkeypatch.setattr(device, "_allocated", int(device.driver.global_mem_size) - 100)

    with pytest.raises(OutOfMemory, match="1000 bytes needed, 100 available"):
        device.buffer_type.alloc(1000)


def test_memory_in_use_is_not_free(device):
    before = device.memory().free

    with device.buffer_type.alloc(1 << 20):
        assert device.memory().free == before - (1 << 20)

    assert device.memory().free == before


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


def test_driver_that_went_away_is_reported_as_a_lost_device(driver, monkeypatch):
    def gone(devices):
        raise cl.RuntimeError("Context", -2)  # CL_DEVICE_NOT_AVAILABLE

    monkeypatch.setattr(cl, "Context", gone)
    with OpenCLDevice("opencl:0", driver) as device, pytest.raises(DeviceLost, match="opencl:0"):
        device.open()
