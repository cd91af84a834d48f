"""Compiled programs: how many there are, and what is said of those that do not compile."""

import os
import subprocess
import sys
from uuid import uuid4

import numpy as np
import pyopencl as cl
import pytest
from pyopencl.characterize import has_src_build_cache

import tensorplug as tp
from tensorplug.device import DeviceError
from tensorplug_emulator.suites.devices import ProgramTests, doubled
from tensorplug_opencl import drivers, programs
from tensorplug_opencl.device import OpenCLDevice

PROGRAM = """
import sys
import numpy as np, tensorplug as tp
x = tp.input("x", (4,), tp.F32)
y = tp.scale(x, scale=3.0)
with tp.open(sys.argv[1]) as stream, tp.Scheduler([stream]).schedule(y) as run:
    print(run.run({x: np.ones(4, np.float32)})[y].tolist())
"""


def nonsense(_launch, _dialect, *, parts):
    return "__kernel void scale(nonsense"


def test_text_that_does_not_compile_names_driver_kernel_and_log(device, stream, monkeypatch):
    monkeypatch.setattr(programs, "source", nonsense)
    x = tp.input("x", (4,), tp.F32)

    with pytest.raises(DeviceError, match=r"(?s)cannot compile kernel scale.*error"):
        tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0))


def test_failed_build_leaves_the_device_usable(device, stream, monkeypatch):
    x = tp.input("x", (4,), tp.F32)
    with monkeypatch.context() as broken:
        broken.setattr(programs, "source", nonsense)
        with pytest.raises(DeviceError):
            tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0))

    y = tp.scale(x, scale=3.0)
    with tp.Scheduler([stream]).schedule(y) as run:
        assert run.run({x: np.ones(4, np.float32)})[y].tolist() == [3.0] * 4


@pytest.fixture
def kept(driver, monkeypatch, tmp_path):
    """An empty cache folder of a driver that keeps no programs by itself."""
    if has_src_build_cache(driver):
        pytest.skip("this driver keeps programs by itself")
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path))
    return tmp_path / "opencl"


@pytest.fixture
def compiled(monkeypatch):
    """The texts that were compiled; programs that were kept come as binaries."""
    texts = []

    class Counting(cl.Program):
        def __init__(self, context, *made_of):
            super().__init__(context, *made_of)
            if len(made_of) == 1:
                texts.extend(made_of)

    monkeypatch.setattr(cl, "Program", Counting)
    return texts


@pytest.fixture
def again(driver):
    """Compute on a new device, as another process would."""

    def compute():
        with OpenCLDevice("opencl:0", driver) as device, device.open() as stream:
            return doubled(stream)

    return compute


class TestPrograms(ProgramTests):
    """Programs that processes share."""

    suffix = ".bin"

    @pytest.fixture
    def folder(self, kept):
        return kept

    @pytest.fixture
    def compilations(self, compiled):
        return lambda: len(compiled)


def test_binary_that_the_driver_refuses_is_compiled_again_and_replaced(again, kept, compiled):
    again()
    (file,) = kept.iterdir()
    programs.CACHE.write(file.name, b"of another build of the driver")

    assert [again() for _ in range(2)] == [[2.0] * 4] * 2

    assert len(compiled) == 2


def test_drivers_and_options_have_programs_of_their_own(device, kept):
    class Updated:
        def __getattr__(self, name):
            return "newer" if name == "driver_version" else getattr(device.driver, name)

    mine = device.programs
    others = programs.Programs(device.context, Updated())
    names = {mine._file("a", ""), mine._file("b", ""), mine._file("a", "-g"), others._file("a", "")}

    assert len(names) == 4


def test_pyopencl_keeps_and_unpickles_nothing(driver, kept, tmp_path):
    """Its own caches are off: what they find wrong would end the program."""
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }
    environment.pop("PYOPENCL_NO_CACHE", None)
    spec = next(f"opencl:{i}" for i, each in enumerate(drivers.devices()) if each == driver)

    subprocess.run([sys.executable, "-c", PROGRAM, spec], env=environment, check=True, timeout=100)

    found = {path.name for path in (tmp_path / "home").rglob("*") if "pocl" not in path.parts}
    assert {name for name in found if "pyopencl" in name or "pytools" in name} == set()


@pytest.mark.parametrize("home", ["/proc/nope", "/dev/null"])
def test_machine_without_a_place_to_write_computes_with_one_warning(driver, home):
    spec = next(f"opencl:{i}" for i, each in enumerate(drivers.devices()) if each == driver)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"TENSORPLUG_CACHE", "XDG_CACHE_HOME", "PYOPENCL_NO_CACHE"}
        and not name.startswith("POCL")
    }

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, spec],
        env={**environment, "HOME": home},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )

    assert done.stdout == "[3.0, 3.0, 3.0, 3.0]\n"
    lines = done.stderr.splitlines()
    assert len(lines) == (0 if has_src_build_cache(driver) else 1)
    assert all("name a folder of your own in TENSORPLUG_CACHE" in line for line in lines)


def test_compiler_counts_no_warnings_on_standard_error(device, capfd):
    name = f"silent_{uuid4().hex}"  # PoCL keeps programs: it compiles new text only
    text = f"__kernel void {name}(__global int* y) {{ int x = 1.5f; y[0] = x; 0; }}"

    kernel = cl.Kernel(programs.built(cl.Program(device.context, text), "-cl-std=CL1.2"), name)

    assert kernel.num_args == 1
    assert capfd.readouterr().err == ""
