"""tensorplug-native is built with a compiler where there is one, and does no harm where not."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

COMPILER = shutil.which(os.environ.get("CXX", "c++"))

COMPILERS = re.compile(r"(.+-)?(cc|c\+\+|gcc|g\+\+|clang(\+\+|-cl)?|icx|icpx)(-[\d.]+)?")
"""Names of programs that compile."""


def without_compilers(folder: Path) -> str:
    """A value of PATH that leads to all programs but compilers, through links in `folder`."""
    folder.mkdir()
    found = [
        program
        for place in os.environ["PATH"].split(os.pathsep)
        for program in sorted(Path(place).glob("*"))
        if not COMPILERS.fullmatch(program.name)
    ]
    # The first of a name is the one that would be run.
    for name, program in {program.name: program for program in reversed(found)}.items():
        (folder / name).symlink_to(program)
    return str(folder)


@pytest.fixture(scope="module", params=["broken", "none"])
def pure(
    members: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """The wheel that is built where the compiler does not work, or where there is none."""
    out = tmp_path_factory.mktemp("pure")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out)]
    environ = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    if request.param == "broken":
        environ["CXX"] = "no-such-compiler"
    else:
        environ["PATH"] = without_compilers(tmp_path_factory.mktemp("bin") / "bin")
        assert shutil.which("c++", path=environ["PATH"]) is None
    subprocess.run(
        [*command, str(members["tensorplug-native"])], check=True, capture_output=True, env=environ
    )
    (wheel,) = out.iterdir()
    return wheel


def install(environment, wheels, native):
    """Install `native` and what it needs, over what another test has left."""
    wanted = (wheels["tensorplug"], wheels["tensorplug-cpu"], native)
    environment.pip("install", "--no-index", "--no-deps", "--force-reinstall", *wanted)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_the_wheel_has_the_library_and_says_for_which_platform(wheels):
    wheel = wheels["tensorplug-native"]

    assert "tensorplug_native/_native.so" in zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith("tensorplug_native-0.2.0-py3-none-")
    assert not wheel.name.endswith("any.whl")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="levels are those of x86")
def test_the_wheel_has_levels_that_this_processor_may_lack(wheels):
    with zipfile.ZipFile(wheels["tensorplug-native"]) as wheel:
        library = wheel.read("tensorplug_native/_native.so")

    for level in ("baseline", "avx2", "avx512", "avx512_bf16"):
        assert f"{level}\0".encode() in library


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_the_compiled_variant_serves_cpu(environment, wheels):
    install(environment, wheels, wheels["tensorplug-native"])

    used = environment.output(
        "python", "-c", "import tensorplug as tp; tp.load_all(); print(tp.open('cpu'))"
    )

    assert used == "<NativeBackend cpu:0>\n"


def test_without_a_compiler_the_wheel_is_pure_and_numpy_carries_on(environment, wheels, pure):
    install(environment, wheels, pure)

    info = json.loads(environment.output("tensorplug", "info", "--json"))
    used = environment.output(
        "python", "-c", "import tensorplug as tp; tp.load_all(); print(tp.open('cpu'))"
    )

    assert pure.name == "tensorplug_native-0.2.0-py3-none-any.whl"
    (native,) = [c for c in info["candidates"] if "native" in c["distribution"]]
    assert (native["state"], native["reason"]) == ("unsupported", "built without a compiler")
    assert used == "<CPUBackend cpu:0>\n"
