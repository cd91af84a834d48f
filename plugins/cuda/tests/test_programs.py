"""Compiled programs: how many there are, where they are kept, and those that do not compile."""

import pytest

import tensorplug as tp
from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import ProgramTests, doubled

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty folder for programs; what the emulator compiled before is known to the process."""
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path))
    return tmp_path / "cuda"


@pytest.fixture
def again(devices):
    """Compute it on a new device, as another process would."""

    def compute():
        (device,) = devices()
        with device, device.open() as stream:
            return doubled(stream)

    return compute


class TestPrograms(ProgramTests):
    """Programs that processes share."""

    suffix = ".cubin"

    @pytest.fixture
    def compilations(self, machine):
        return lambda: machine.compilations


def test_other_drivers_and_gpus_have_programs_of_their_own(again, machine, monkeypatch):
    from cupy.cuda import runtime

    again()
    machine.gpus[0].properties["minor"] = 9
    again()
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 13030)
    again()

    assert machine.compilations == 3


@pytest.mark.parametrize("content", [b"damaged", b""], ids=["damaged", "empty"])
def test_damaged_programs_are_built_anew(again, machine, folder, content, monkeypatch):
    from cupy.cuda import driver, function

    real = function.Module.load

    def load(module, cubin):
        if not cubin:
            raise driver.CUDADriverError(200)
        real(module, cubin)

    monkeypatch.setattr(function.Module, "load", load)
    again()
    (file,) = folder.iterdir()
    file.write_bytes(content)

    assert again() == [2.0] * 4

    assert machine.compilations == 2
    assert file.read_bytes() != content


def test_folder_that_cannot_be_written_costs_time_alone(again, machine, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path / "file"))

    assert [again() for _ in range(2)] == [[2.0] * 4] * 2

    assert machine.compilations == 2


def test_kernel_that_does_not_compile_is_named_with_the_compilers_words(stream, monkeypatch):
    from tensorplug_cuda import programs

    monkeypatch.setattr(programs, "cuda_source", lambda *_, **__: "nonsense")

    with pytest.raises(tp.DeviceError, match=r"(?s)cuda:0: kernel scale .*cannot be compiled"):
        doubled(stream)


def test_cupy_without_its_compiler_says_what_to_install(stream, monkeypatch):
    from cupy.cuda import compiler

    def gone(*_args):
        raise RuntimeError("CuPy failed to load libnvrtc.so.13")

    monkeypatch.setattr(compiler, "compile_using_nvrtc", gone)

    with pytest.raises(tp.DeviceError, match="finds no compiler; pip install nvidia-cuda-nvrtc"):
        doubled(stream)
