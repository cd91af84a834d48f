"""Devices of every driver that is installed here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorplug_opencl import drivers
from tensorplug_opencl.backend import OpenCLBackend
from tensorplug_opencl.device import OpenCLDevice

HERE = Path(__file__).parent
OCLGRIND = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
PROCESSOR = 1 << 1
"""OpenCL's bit for processors; PyOpenCL is not imported where there is no driver."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a `driver` on every one; none is a skip with its reason."""
    if "driver" in metafunc.fixturenames:
        found = list(drivers.devices())
        nobody = pytest.mark.skip(reason=drivers.missing() or "no OpenCL driver has a device")
        params = found or [pytest.param(None, marks=nobody)]
        names = [driver.platform.name.split()[0] for driver in found] or ["none"]
        metafunc.parametrize("driver", params, ids=names, scope="class")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave further drivers of the same processor to T1, and run a part on them: compiling is slow.

    What is left out there runs in the kit at tier ci, which tier T1 has for every device.
    """
    if config.getoption("tensorplug_tier") != "smoke":
        return
    thin, seen = _second_drivers(), set()
    for item in items:
        of_variants = item.path.name == "test_variants.py" and item.path.parent == HERE
        if _driver_of(item) in thin or (of_variants and _is_long(item)):
            item.add_marker(pytest.mark.long)
    out = {item for item in items if _driver_of(item) in thin and _is_left_out(item, seen)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def _is_long(item: pytest.Item) -> bool:
    """Three types of four of each way to multiply: each is a program that takes a second."""
    spec = getattr(item, "callspec", None)
    return spec is not None and spec.indices.get("dtype", 0) % 4 != 0


def _second_drivers() -> set[object]:
    """Processors but the last: drivers that pip installed come behind those of the system."""
    processors = [d for d in drivers.devices() if d.type & PROCESSOR]
    return set(processors[:-1])


def _driver_of(item: pytest.Item) -> object:
    spec = getattr(item, "callspec", None)
    return spec.params.get("driver") if spec is not None else None


def _is_left_out(item: pytest.Item, seen: set[tuple[str, str]]) -> bool:
    """All but the first case of each op, every fourth graph, every fourth type."""
    spec = item.callspec
    if "case" in spec.params:
        kind = (item.originalname, spec.params["case"].op)
        known = kind in seen
        seen.add(kind)
        return known
    place = next((spec.indices[axis] for axis in ("name", "dtype") if axis in spec.indices), 0)
    return place % 4 != 0


@pytest.fixture(scope="class")
def device(driver) -> Iterator[OpenCLDevice]:
    """A device of its own for each class of tests, or each test."""
    with OpenCLDevice("opencl:0", driver) as device:
        yield device


@pytest.fixture
def oclgrind(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process whose one device is oclgrind, which must find no fault in it."""
    if not OCLGRIND.exists():
        pytest.skip("apt-get install oclgrind")
    (tmp_path / "oclgrind.icd").write_text(f"{OCLGRIND}\n")
    log = tmp_path / "oclgrind.log"
    yield {
        **os.environ,
        drivers.VENDORS: str(tmp_path),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOG": str(log),
        # Its interpreter does not know all that its compiler makes of kernels when it optimises.
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
        "TENSORPLUG_CACHE": str(tmp_path),
    }
    assert not log.exists() or log.read_text() == ""


@pytest.fixture
def stream(device: OpenCLDevice) -> Iterator[OpenCLBackend]:
    """One stream of the device."""
    with device.open() as stream:
        yield stream
