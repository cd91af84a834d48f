"""What is said on machines without CuPy, without a driver, and without a GPU."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from tensorplug_cuda import drivers, plugin


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine where nothing is missing; tests take something away."""
    monkeypatch.setattr(
        drivers.importlib.util, "find_spec", lambda name: ModuleSpec(name, loader=None)
    )
    monkeypatch.setattr(drivers, "driver_version", lambda: 13020)
    monkeypatch.setattr(drivers, "_is_installed", lambda name: name == "cupy-cuda13x")
    monkeypatch.setattr(drivers, "DEVICES", tmp_path)
    monkeypatch.setattr(drivers.sys, "platform", "linux")
    monkeypatch.delenv(drivers.VISIBLE, raising=False)
    (tmp_path / "nvidia0").touch()
    return tmp_path


def test_machine_with_everything_scores_one(machine):
    assert plugin.tensorplug_score() == 1


def test_machine_without_cupy_is_told_what_to_install(machine, monkeypatch):
    monkeypatch.setattr(drivers.importlib.util, "find_spec", lambda name: None)

    assert plugin.tensorplug_score().reason == (
        'CuPy is not installed; pip install "tensorplug-cuda[cuda13]", or [cuda12] for a driver '
        "that does not support CUDA 13"
    )


def test_machine_without_driver_is_told_so(machine, monkeypatch):
    monkeypatch.setattr(drivers, "driver_version", lambda: None)

    assert plugin.tensorplug_score().reason == (
        "no NVIDIA driver: libcuda.so.1 cannot be loaded; install the driver of your GPU"
    )


@pytest.mark.parametrize(
    ("supported", "reason"),
    [
        (
            12080,
            "the driver supports CUDA 12.8 and is too old for cupy-cuda13x; update the driver to "
            "one that supports CUDA 13.0, or pip uninstall cupy-cuda13x and pip install "
            '"tensorplug-cuda[cuda12]"',
        ),
        (
            11040,
            "the driver supports CUDA 11.4 and is too old for cupy-cuda13x; update the driver to "
            "one that supports CUDA 13.0",
        ),
    ],
)
def test_driver_that_is_too_old_is_told_apart_from_none(machine, monkeypatch, supported, reason):
    monkeypatch.setattr(drivers, "driver_version", lambda: supported)

    assert plugin.tensorplug_score().reason == reason


def test_cupy_of_unknown_make_may_use_any_driver(machine, monkeypatch):
    monkeypatch.setattr(drivers, "driver_version", lambda: 11000)
    monkeypatch.setattr(drivers, "_is_installed", lambda name: False)

    assert plugin.tensorplug_score() == 1


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_variable_that_hides_every_gpu_is_named(machine, monkeypatch, hidden):
    monkeypatch.setenv(drivers.VISIBLE, hidden)

    reason = plugin.tensorplug_score().reason

    assert reason == f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU; unset it or name one"


@pytest.mark.parametrize("visible", ["0", "1,0", "GPU-8932f937"])
def test_variable_that_names_gpus_hides_nothing(machine, monkeypatch, visible):
    monkeypatch.setenv(drivers.VISIBLE, visible)

    assert plugin.tensorplug_score() == 1


def test_driver_without_a_gpu_is_told_so(machine):
    (machine / "nvidia0").unlink()
    (machine / "nvidiactl").touch()

    assert plugin.tensorplug_score().reason.startswith(f"no GPU: {machine} has no nvidia0")


@pytest.mark.parametrize("node", ["nvidia3", "dxg", "nvmap"])
def test_any_kind_of_device_file_is_a_gpu(machine, node):
    (machine / "nvidia0").unlink()
    (machine / node).touch()

    assert plugin.tensorplug_score() == 1


def test_library_that_is_not_there_is_no_driver(monkeypatch):
    monkeypatch.setattr(drivers, "LIBRARIES", {sys.platform: "libnosuchdriver.so.1"})

    assert drivers.driver_version() is None


def test_library_that_is_no_driver_is_none(monkeypatch):
    monkeypatch.setattr(drivers, "LIBRARIES", {sys.platform: None})

    assert drivers.driver_version() is None


def test_system_without_drivers_has_none(monkeypatch):
    monkeypatch.setattr(drivers.sys, "platform", "darwin")

    assert drivers.driver_version() is None


def test_asking_for_a_score_imports_neither_cupy_nor_the_device():
    program = (
        "import sys, tensorplug_cuda.plugin as p; p.tensorplug_score(); "
        "print({'cupy', 'tensorplug_cuda.device'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"


def test_backend_that_cannot_be_used_is_a_reason_and_no_traceback():
    program = (
        "import tensorplug as tp; report = tp.load_all(); "
        "print(*(f'{c.state.value}: {c.reason}' for c in report.candidates if c.name == 'cuda'))"
    )
    environment = {**os.environ, drivers.VISIBLE: ""}

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.startswith("unsupported: ")
    assert done.stderr == ""
