"""The devices that the suites are proved on."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

import tensorplug as tp
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.graphs import GraphTests


def null(name: str, **options) -> Callable[[], NullDevice]:
    """Makes fake devices that remember nothing, so that they leave nothing behind."""
    return partial(NullDevice, name, logs=False, **options)


DEVICES: dict[str, Callable[[], tp.Device]] = {
    "plain": null("null:0"),
    "pinned": null("pinned:0", host_buffer=True, float64=False),
    "host": null("host:0", host=True),
    "late": null("late:0", asynchronous=True),
    "late_host": null("late:0", asynchronous=True, host=True),
    "small": null("small:0", memory=8 << 20, max_size=1 << 18),
    "bare": null("bare:0", asynchronous=True, events=False, async_transfer=False, async_copy=False),
    "able": null("able:0", events=True, async_transfer=True, async_copy=True),
    "only_dup": null("dup:0", ops=["dup"]),
    "no_ops": null("no:0", ops=[]),
    "cpu": CPUDevice,
}


@pytest.fixture(scope="class", params=DEVICES)
def device_maker(request) -> Callable[[], tp.Device]:
    """What makes each of DEVICES in turn."""
    return DEVICES[request.param]


@pytest.fixture(scope="class")
def device(device_maker) -> Iterator[tp.Device]:
    """Each of DEVICES in turn."""
    with device_maker() as made:
        yield made


WAYS = [name for name in vars(GraphTests) if name.startswith("test_graph_")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At tier smoke each graph is run on each fake device in one of its ways, not in all."""
    if config.getoption("tensorplug_tier") == "smoke":
        out = {item for item in items if _is_of_another_way(item)}
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def _is_of_another_way(item: pytest.Item) -> bool:
    if item.parent is None or item.parent.name != "TestGraphs":
        return False
    places = item.callspec.indices
    if "device" not in places or "name" not in places:
        return False
    turn = places["device"] + places["name"] + WAYS.index(item.originalname)
    return turn % len(WAYS) != 0


SUITE = """
import pytest
from tensorplug_testing.suites.{module} import {name}


class TestFaulty({name}):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, request):
        made = request.config.make_device()
        yield made
        made.close(force=True)
"""


class Recorder:
    """Gives a run its device and notes which tests failed."""

    def __init__(self, make_device: Callable[[], tp.Device]) -> None:
        self._make_device = make_device
        self.failed: set[str] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.make_device = self._make_device

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert not (report.failed and report.when == "setup"), report.longreprtext
        if report.failed and report.when == "call":
            self.failed.add(report.location[2].partition(".")[2].partition("[")[0])


Failures = Callable[..., set[str]]


@pytest.fixture
def failures(tmp_path) -> Failures:
    """The names of the tests of a suite that fail on a device, among those that match `only`."""

    def run(suite: type, make_device: Callable[[], tp.Device], only: str = "test") -> set[str]:
        # Modules are kept by name from run to run.
        path = tmp_path / f"test_faulty_{suite.__name__}.py"
        path.write_text(
            SUITE.format(module=suite.__module__.rpartition(".")[2], name=suite.__name__)
        )
        recorder = Recorder(make_device)
        options = ["-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path), "--capture=no"]
        options += ["-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib"]
        (tmp_path / "none.ini").write_text("[pytest]\n")
        pytest.main([str(path), "-k", only, *options], plugins=[recorder])
        return recorder.failed

    return run
