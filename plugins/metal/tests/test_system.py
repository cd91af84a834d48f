"""Messages on machines that are not Macs, and on Macs where something is missing."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from tensorplug_metal import plugin, system


@pytest.fixture
def mac(monkeypatch):
    """A Mac where nothing is missing; tests take something away."""
    monkeypatch.setattr(system.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(system.platform, "mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(
        system.importlib.util, "find_spec", lambda name: ModuleSpec(name, loader=None)
    )


def answer(program, **environment):
    """What a new process prints for a program; it must say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_mac_with_everything_scores_one(mac):
    assert plugin.tensorplug_score() == 1


@pytest.mark.parametrize("name", ["Linux", "Windows", "FreeBSD"])
def test_other_systems_are_told_what_is_required(monkeypatch, name):
    monkeypatch.setattr(system.platform, "system", lambda: name)

    assert plugin.tensorplug_score().reason == "requires macOS"


@pytest.mark.parametrize(("old", "told"), [("12.7.1", "12.7"), ("10.15", "10.15")])
def test_system_that_is_too_old_is_told_which_is_needed(mac, monkeypatch, old, told):
    monkeypatch.setattr(system.platform, "mac_ver", lambda: (old, ("", "", ""), "x86_64"))

    assert plugin.tensorplug_score().reason == (
        f"requires macOS 13.0 for Metal 3, and this is {told}; update the system"
    )


def test_mac_without_pyobjc_is_told_what_to_install(mac, monkeypatch):
    monkeypatch.setattr(system.importlib.util, "find_spec", lambda name: None)

    assert plugin.tensorplug_score().reason == (
        "PyObjC's Metal is not installed; pip install pyobjc-framework-Metal"
    )


def test_asking_for_a_score_imports_neither_metal_nor_the_device():
    program = (
        "import sys, tensorplug_metal.plugin as p; p.tensorplug_score(); "
        "print({'Metal', 'objc', 'tensorplug_metal.device', 'tensorplug_simt'} & set(sys.modules))"
    )

    assert answer(program) == "set()"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have the backend")
def test_installed_elsewhere_it_is_a_reason_and_nothing_else():
    program = (
        "import tensorplug as tp; report = tp.load_all(); "
        "print(*(f'{c.state.value}: {c.reason}' for c in report.candidates if c.name == 'metal'))"
    )

    assert answer(program) == "unsupported: requires macOS"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have the backend")
def test_asking_for_a_device_elsewhere_names_what_is_required():
    program = (
        "import tensorplug as tp\n"
        "try:\n  tp.open('metal:0')\n"
        "except tp.TensorplugError as error:\n  print(error)"
    )

    assert "requires macOS" in answer(program)
