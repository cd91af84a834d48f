"""The library and the driver `replay`, built with options of their own, and tests with them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tensorplug_native.library import VARIABLE

HERE = Path(__file__).parent
SOURCE = HERE.parents[1]
"""The distribution's folder."""
TESTS = HERE.parent
KIT = ("--pyargs", "tensorplug_testing.conformance", "--device", "cpu@tensorplug-native")
"""The conformance kit, as arguments of pytest."""

# Levels that this machine cannot run are not tested. With more optimisation compilers need minutes
# for code that sanitizers have grown.
QUICK = (
    "TP_LEVELS=host",
    "CMAKE_BUILD_TYPE=Checked",
    "CMAKE_CXX_FLAGS=-O1 -fno-sanitize-recover=all",
)
ADDRESS = ("TP_SANITIZE=address,undefined", *QUICK)
THREAD = ("TP_SANITIZE=thread", *QUICK)


def build(folder: Path, target: str, *options: str) -> Path:
    """Build `target` in `folder`, with options for CMake; gives the file."""
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake is not installed"
    definitions = [f"-D{option}" for option in options]
    for command in (
        [cmake, "-S", str(SOURCE), "-B", str(folder), *definitions],
        [cmake, "--build", str(folder), "--target", target, "--parallel"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    name = {"native": "_native.so"}.get(target, target)
    return folder / name


def runtime(name: str) -> str:
    """The sanitizer's library that a process must load before others."""
    command = ["c++", f"-print-file-name=lib{name}.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_tests(library: Path, level: str, *arguments: str, **environment: str) -> None:
    """Run pytest in a process with another build of the library, at an instruction-set level."""
    # What is written by others than Python, reports of sanitizers above all, is not captured.
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=sys")
    command = [sys.executable, str(HERE / "instrumented.py"), str(library), *options, *arguments]
    environ = {**os.environ, VARIABLE: level, **environment}

    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert " passed" in done.stdout
