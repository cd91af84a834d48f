"""GPUs of Macs for the tests: emulated ones, since nothing else is to be had where tests run.

`Metal`, `objc` and `Foundation` are the stand-ins in `standin`, on every system.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tensorplug_metal.backend import MetalBackend
    from tensorplug_metal.device import MetalDevice

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "standin"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the kit where none of it would run: naming its thousands of cases takes seconds."""
    unwanted = "not long" in config.option.markexpr
    left_out = unwanted and collection_path == HERE / "test_conformance.py"
    return True if left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At tier smoke the kit has a case of every third op: a compiler takes half a second for each.

    The kernels of all cases run in the tests of tensorplug-simt, which compile many at once.
    """
    if config.getoption("tensorplug_tier") != "smoke":
        return
    cases = [item for item in items if item.path == HERE / "test_conformance.py" and _op(item)]
    taken = list(dict.fromkeys(map(_op, cases)))[::3]
    seen: set[tuple[object, str]] = set()
    out = set()
    for item in cases:
        kind = (getattr(item, "originalname", ""), _op(item))
        if kind in seen or _op(item) not in taken:
            out.add(item)
        seen.add(kind)
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def _op(item: pytest.Item) -> str:
    """The op of a case of the kit; empty for other tests."""
    spec = getattr(item, "callspec", None)
    case = spec.params.get("case") if spec is not None else None
    return case.op if case is not None else ""


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
