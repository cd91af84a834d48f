"""Where drivers are found, and what is said where there are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_opencl import drivers, plugin
from tensorplug_opencl.facts import POCL


@pytest.fixture
def no_drivers(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(drivers, "SYSTEM", tmp_path / "vendors")
    monkeypatch.setattr(drivers, "PACKAGED", {})
    monkeypatch.delenv(drivers.VENDORS, raising=False)


def test_machine_without_driver_is_told_what_to_install(no_drivers):
    answer = plugin.tensorplug_score()

    assert "no OpenCL driver" in answer.reason
    assert "pip install tensorplug-opencl[cpu]" in answer.reason


def test_machine_without_pyopencl_is_told_so(monkeypatch):
    monkeypatch.setattr(drivers.importlib.util, "find_spec", lambda name: None)

    assert plugin.tensorplug_score().reason.startswith("PyOpenCL is not installed")


def test_drivers_that_the_user_chose_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv(drivers.VENDORS, str(tmp_path))

    drivers.find_packaged()

    assert os.environ[drivers.VENDORS] == str(tmp_path)


def test_packaged_driver_joins_those_of_the_system(monkeypatch, tmp_path):
    system = tmp_path / "vendors"
    system.mkdir()
    (system / "acme.icd").write_text("libacme.so\n")
    monkeypatch.setattr(drivers, "SYSTEM", system)
    monkeypatch.setattr(drivers, "_packaged_libraries", lambda: iter([tmp_path / "libpip.so"]))
    monkeypatch.setenv(drivers.VENDORS, "")
    monkeypatch.delenv(drivers.VENDORS)

    drivers.find_packaged()

    files = sorted(Path(os.environ[drivers.VENDORS]).glob("*.icd"))
    assert [f.read_text() for f in files] == ["libacme.so\n", f"{tmp_path / 'libpip.so'}\n"]


def test_asking_for_a_score_loads_no_driver():
    program = (
        "import sys, tensorplug_opencl.plugin as p; p.tensorplug_score(); "
        "print('pyopencl' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"


def test_loader_that_finds_no_platform_gives_no_devices(tmp_path):
    program = "from tensorplug_opencl import drivers; print(drivers.devices())"
    environment = {**os.environ, drivers.VENDORS: str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout == "()\n"


THREADS = """
import os
import sys

import pyopencl

from tensorplug_opencl import drivers

def threads():
    return {int(task) for task in os.listdir("/proc/self/task")}

before = threads()
os.sched_setaffinity(0, range(int(sys.argv[1])))
drivers.devices()[0].name
allowed = [os.sched_getaffinity(thread) for thread in threads() - before]
print(*sorted({min(processors) for processors in allowed if len(processors) == 1}))
"""
"""Prints the processors to which single threads of drivers are kept."""


def kept(allowed: int, **variables: str) -> str:
    """What THREADS prints in a process that may use the first `allowed` processors."""
    plain = {n: value for n, value in os.environ.items() if n not in drivers.POCL_THREADS}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(allowed)],
        capture_output=True,
        text=True,
        check=True,
        env=plain | variables,
    )
    return done.stdout.strip()


@pytest.fixture
def processors() -> int:
    """How many processors there are, all of them this process's to use, next to PoCL."""
    names = [device.platform.name for device in drivers.devices()]
    if sys.platform != "linux" or POCL not in names:
        pytest.skip("PoCL is not installed, or not for Linux")
    count = os.cpu_count() or 1
    if count == 1 or len(os.sched_getaffinity(0)) < count:
        pytest.skip("this process may use one processor only, or not all")
    return count


def test_threads_of_pocl_stay_on_processors_of_their_own(processors):
    assert kept(processors) == " ".join(map(str, range(processors)))


def test_threads_of_pocl_stay_within_what_a_process_may_use(processors):
    assert kept(1) == "0"


def test_variables_about_threads_of_pocl_are_left_alone(processors):
    assert kept(processors, POCL_AFFINITY="0") == ""
