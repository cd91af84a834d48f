"""GPUs for the tests: emulated ones, or the real ones for `pytest -m gpu`.

Where the marker `gpu` is asked for, `cupy` is the installed one; else it is the stand-in, which
needs neither CuPy nor a driver. One process has one of them.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorplug_simt.smoke import leave_out

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend
    from tensorplug_cuda.device import CudaDevice

HERE = Path(__file__).parent
STANDIN = HERE / "standin"


def pytest_configure(config: pytest.Config) -> None:
    """Choose who `cupy` is, before anything imports it."""
    if config.option.markexpr != "gpu":
        sys.path.insert(0, str(STANDIN))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the kit where none of it would run: naming its thousands of cases takes seconds."""
    wanted = config.option.markexpr
    out = {"test_gpu.py": wanted != "gpu", "test_conformance.py": "not long" in wanted}
    return True if out.get(collection_path.name) and collection_path.parent == HERE else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At tier smoke the kit has a case of every third op."""
    leave_out(config, items, HERE / "test_conformance.py")


@pytest.fixture
def machine() -> Iterator[object]:
    """A new emulated machine with one GPU; nothing wrote where it may not when the test ends."""
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
