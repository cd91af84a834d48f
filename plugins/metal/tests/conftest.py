"""GPUs of Macs for the tests: emulated ones, since the tests run on machines without a Mac GPU.

`Metal`, `objc` and `Foundation` are the stand-ins in `standin`, on every system.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tensorplug_emulator.smoke import leave_out

if TYPE_CHECKING:
    from tensorplug_metal.backend import MetalBackend
    from tensorplug_metal.device import MetalDevice

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "standin"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At tier smoke the kit has a case of every third op."""
    leave_out(config, items, HERE / "test_conformance.py")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A new emulated Mac with one GPU; nothing went wrong unseen when the test ends."""
    from Metal._machine import machine

    from tensorplug_metal import system

    monkeypatch.setattr(system, "version", lambda: (15, 1))
    machine.reset()
    yield machine
    assert machine.faults == []


@pytest.fixture
def devices(machine) -> "Callable[[], list[MetalDevice]]":
    """What lists the devices of a new machine."""
    from tensorplug_metal.enumeration import devices

    return devices


@pytest.fixture
def device(devices) -> "Iterator[MetalDevice]":
    """The emulated GPU of a new machine."""
    (device,) = devices()
    with device:
        yield device


@pytest.fixture
def stream(device: "MetalDevice") -> "Iterator[MetalBackend]":
    """One stream of the device."""
    with device.open() as stream:
        yield stream
