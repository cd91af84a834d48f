"""The system's C++ compiler: whether there is one, and shared objects of it, kept on disk."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from tensorplug.errors import DeviceError, Unsupported
from tensorplug_simt.cache import cache_folder

HERE = Path(__file__).parent
HEADERS = (
    "runtime.h",
    "switch.h",
    "languages/cuda.h",
    "languages/metal.h",
    "languages/metal_types.h",
)

KEPT = 1024
"""Shared objects that stay on disk."""

COMMON = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{HERE}")
CHECKED = (
    # A function of the runtime is called before each access to memory that is no plain variable.
    "-fsanitize=kernel-address",
    *("--param", "asan-instrumentation-with-call-threshold=0"),
    *("--param", "asan-stack=0"),
    *("--param", "asan-globals=0"),
    "-fno-sanitize-address-use-after-scope",
    # Steps are rounded one by one, and bytes may be read as numbers.
    *("-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno"),
    # Accesses stay as the kernel has them.
    *("-fno-tree-vectorize", "-fno-store-merging", "-fno-tree-loop-distribute-patterns"),
    "-w",
)


@cache
def compiler() -> tuple[str, ...]:
    """The command of the compiler, `CXX` before `g++`; empty where there is none."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    return tuple(command) if shutil.which(command[0]) else ()


@cache
def missing() -> str:
    """Why nothing can be emulated here; empty where it can."""
    if sys.platform != "linux":
        return "the emulator of kernels needs Linux"
    if not compiler():
        return "the emulator of kernels needs GCC's g++, which is not installed (CXX names another)"
    if b"__clang__" in _run("-dM", "-E", "-x", "c++", os.devnull):
        return f"the emulator of kernels needs GCC, and {compiler()[0]} is clang; set CXX to a g++"
    return ""


def shared_object(text: str) -> Path:
    """`text` compiled with checked accesses and linked to the runtime.

    Raises Unsupported where there is no compiler, DeviceError with its messages.
    """
    if missing():
        raise Unsupported(missing())
    path = _folder() / f"{_key(text)}.so"
    try:
        os.utime(path)  # used now; `touch` would make an empty file of one that was just forgotten
    except FileNotFoundError:
        _build(text, path)
    return path


def preprocessed(text: str, *options: str) -> str:
    """`text` with its macros expanded and without comments. Raises as `shared_object` does."""
    if missing():
        raise Unsupported(missing())
    return _run("-E", "-P", "-x", "c++", *options, "-", given=text).decode()


def _build(text: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        (folder / "kernels.cpp").write_text(text, encoding="utf-8")
        kernels, made = folder / "kernels.o", folder / "kernels.so"
        _run(*COMMON, *CHECKED, "-c", str(folder / "kernels.cpp"), "-o", str(kernels))
        options = ("-shared", "-Wl,-Bsymbolic", "-pthread", "-lm")
        _run(str(kernels), str(_runtime(folder)), "-o", str(made), *options)
        made.replace(path)
    _forget_oldest(path.parent)


def _runtime(folder: Path) -> Path:
    """The object of the runtime, which all shared objects have a copy of."""
    path = _folder() / f"{_key((HERE / 'runtime.cpp').read_text(encoding='utf-8'))}.o"
    if not path.exists():
        made = folder / "runtime.o"
        _run(*COMMON, "-c", str(HERE / "runtime.cpp"), "-o", str(made))
        made.replace(path)
    return path


def _run(*options: str, given: str = "") -> bytes:
    command = [*compiler(), *options]
    done = subprocess.run(command, input=given.encode(), capture_output=True, check=False)
    if done.returncode:
        messages = done.stderr.decode(errors="replace")
        raise DeviceError(
            f"emulator: {compiler()[0]} cannot compile the kernels:\n{messages[:4000]}"
        )
    return done.stdout


@cache
def _environment() -> str:
    """All that objects depend on besides their own text."""
    parts = [" ".join((*compiler(), *COMMON, *CHECKED)), _run("--version").decode(errors="replace")]
    parts += [(HERE / name).read_text(encoding="utf-8") for name in HEADERS]
    return "\0".join(parts)


def _key(text: str) -> str:
    return hashlib.sha256(f"{_environment()}\0{text}".encode()).hexdigest()[:24]


def _folder() -> Path:
    folder = cache_folder("emulator")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forget_oldest(folder: Path) -> None:
    found = []
    for path in folder.glob("*.so"):
        # Another process may forget it meanwhile.
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-KEPT]:
        path.unlink(missing_ok=True)
