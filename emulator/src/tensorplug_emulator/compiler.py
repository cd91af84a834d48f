"""The system's C++ compiler: whether there is one, and shared objects of it, kept on disk."""

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tensorplug.device import DeviceError, Unsupported
from tensorplug.system.cache import Cache

HERE = Path(__file__).parent
CACHE = Cache("emulator", ".so")
"""Shared objects by compiler, options, and text with the headers that it includes."""

_COMMENT = re.compile(r"[ \t]*//.*")
_INCLUDE = re.compile(r'^#include "([\w./]+)"', re.MULTILINE)

COMMON = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{HERE}")
CHECKED = (
    # A function of the runtime is called before each access to memory, except plain variables.
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


def load(text: str) -> ctypes.CDLL:
    """`text` compiled with checked accesses and loaded, after the runtime.

    Raises Unsupported where there is no compiler, DeviceError with its messages.
    """
    if missing():
        raise Unsupported(missing())
    _runtime()
    # A change of a comment does not compile the kernel again.
    return _loaded(_COMMENT.sub("", text), CHECKED, ctypes.RTLD_LOCAL)


@cache
def _runtime() -> ctypes.CDLL:
    """The runtime, whose names all kernels of the process share, and so the stacks of its items."""
    return _loaded((HERE / "runtime.cpp").read_text(encoding="utf-8"), (), ctypes.RTLD_GLOBAL)


def _loaded(text: str, options: Sequence[str], mode: int) -> ctypes.CDLL:
    name = f"{_key(text)}.so"
    kept = CACHE.find(name)
    if kept is not None:
        # Deleted meanwhile, or on a disk from which nothing may be executed: it is built again.
        with suppress(OSError):
            return ctypes.CDLL(str(kept), mode=mode)
    with tempfile.TemporaryDirectory(prefix="tensorplug-emulator-") as folder:
        made = _build(text, Path(folder), options)
        CACHE.write(name, made.read_bytes())
        return ctypes.CDLL(str(made), mode=mode)


def preprocessed(text: str, *options: str) -> str:
    """`text` with its macros expanded and without comments. Raises as `load` does."""
    if missing():
        raise Unsupported(missing())
    return _run("-E", "-P", "-x", "c++", *options, "-", given=text).decode()


def _build(text: str, folder: Path, options: Sequence[str]) -> Path:
    given, compiled, made = (folder / f"kernels.{end}" for end in ("cpp", "o", "so"))
    given.write_text(text, encoding="utf-8")
    _run(*COMMON, *options, "-c", str(given), "-o", str(compiled))
    # Without the options of the check: they would link the sanitizer's own library.
    _run(str(compiled), "-o", str(made), "-shared", "-Wl,-Bsymbolic", "-pthread", "-lm")
    return made


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
    """All that objects depend on besides texts."""
    return f"{' '.join((*compiler(), *COMMON, *CHECKED))}\n{_run('--version').decode()}"


@cache
def _header(name: str) -> str:
    """The text of a header and of the headers that it includes."""
    file = next(path for path in (HERE / name, HERE / "languages" / name) if path.exists())
    text = file.read_text(encoding="utf-8")
    return text + "".join(map(_header, _INCLUDE.findall(text)))


def _key(text: str) -> str:
    headers = map(_header, _INCLUDE.findall(text))
    return hashlib.sha256("\0".join((_environment(), *headers, text)).encode()).hexdigest()[:24]
