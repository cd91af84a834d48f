"""GPUs for the tests: emulated ones, or the real ones for `pytest -m gpu`.

Where the marker `gpu` is asked for, `cupy` is the installed one; else it is the stand-in, which
needs neither CuPy nor a driver. One process has one of them.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_emulator.smoke import leave_out

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend
    from tensorplug_cuda.device import CudaDevice

HERE = Path(__file__).parent
STANDIN = HERE / "standin"


def pytest_configure(config: pytest.Config) -> None:
    """Choose which `cupy` is imported, before anything imports it."""
    if config.option.markexpr != "gpu":
        sys.path.insert(0, str(STANDIN))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At tier smoke the kit has a case of every third op."""
    leave_out(config, items, HERE / "test_conformance.py")


@pytest.fixture
def machine() -> Iterator[object]:
    """A new emulated machine with one GPU; the test fails if anything wrote out of bounds."""
    from cupy._machine import machine

    machine.reset()
    yield machine
    assert machine.faults == []


@pytest.fixture
def devices(machine) -> "Callable[[], list[CudaDevice]]":
    """What lists the devices of a new machine."""
    from tensorplug_cuda.enumeration import devices

    return devices


@pytest.fixture
def device(devices) -> "Iterator[CudaDevice]":
    """The emulated GPU of a new machine."""
    (device,) = devices()
    with device:
        yield device


@pytest.fixture(params=["two GPUs", "two parts of one GPU"])
def pair(request, machine, devices, monkeypatch) -> "Iterator[tuple[CudaDevice, CudaDevice]]":
    """Two devices."""
    machine.reset(gpus=2 if request.param == "two GPUs" else 1)
    monkeypatch.setenv("TENSORPLUG_CUDA_EMULATED", str(2 // len(machine.gpus)))
    first, second = devices()
    with first, second:
        yield first, second


@pytest.fixture
def stream(device: "CudaDevice") -> "Iterator[CudaBackend]":
    """One stream of the device."""
    with device.open() as stream:
        yield stream


@pytest.fixture
def chain(stream: "CudaBackend") -> "Chain":
    """A plan of three launches, which make 0 to 31 thirty times as large."""
    x = tp.input("x", (32,), tp.F32)
    steps = [tp.scale(x, 2.0)]
    steps += [tp.scale(steps[-1], 3.0)]
    steps += [tp.scale(steps[-1], 5.0)]
    return Chain(stream, x, steps)


class Chain:
    """A graph of steps with memory of its own, planned on a stream."""

    def __init__(self, stream, x, steps):
        self.stream, self.x, self.steps = stream, x, steps
        self.buffers = []
        self.plan = stream.plan(self.bound())

    def bound(self):
        """The graph in new memory."""
        self.buffers.append(self.stream.device.buffer_type.alloc(4 * 128))
        buffer = self.buffers[-1]
        places = {t: tp.Place(buffer, 128 * i) for i, t in enumerate([self.x, *self.steps])}
        buffer.fill(0)
        buffer.write(0, np.arange(32, dtype=np.float32))
        return tp.Part.of(tp.Graph(self.steps[-1]), tp.Bindings(places))

    def result(self, which=-1):
        """What lies in the memory of the last step."""
        return self.buffers[which].read(3 * 128, 128).view(np.float32)
