"""GPUs for the tests: emulated ones, or the real ones for `pytest -m gpu`.

Where the marker `gpu` is asked for, `cupy` is the installed one; else it is the stand-in, which
needs neither CuPy nor a driver. One process has one of them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend
    from tensorplug_cuda.device import CudaDevice

STANDIN = Path(__file__).parent / "standin"


def pytest_configure(config: pytest.Config) -> None:
    """Choose who `cupy` is, before anything imports it."""
    if config.option.markexpr != "gpu":
        sys.path.insert(0, str(STANDIN))


@pytest.fixture
def machine() -> Iterator[object]:
    """A new emulated machine with one GPU; nothing wrote where it may not when the test ends."""
    from cupy._machine import machine

    machine.reset()
    yield machine
    assert machine.faults == []


@pytest.fixture
def device(machine) -> "Iterator[CudaDevice]":
    """The emulated GPU of a new machine."""
    from tensorplug_cuda.enumeration import devices

    (device,) = devices()
    with device:
        yield device


@pytest.fixture
def stream(device: "CudaDevice") -> "Iterator[CudaBackend]":
    """One stream of the device."""
    with device.open() as stream:
        yield stream
