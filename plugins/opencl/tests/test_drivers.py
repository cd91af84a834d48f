"""Where drivers are found, and what is said where there are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_opencl import drivers, plugin


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
