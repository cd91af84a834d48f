"""The library and the driver `replay`, built in a folder with options of their own."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[2]
"""The distribution's folder."""

# With more optimisation compilers need minutes for code that sanitizers have grown.
QUICK = ("CMAKE_BUILD_TYPE=Checked", "CMAKE_CXX_FLAGS=-O1 -fno-sanitize-recover=all")
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
