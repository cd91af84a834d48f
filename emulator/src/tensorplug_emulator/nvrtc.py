"""NVIDIA's compiler of CUDA C++, which needs no GPU: does a text compile, what do kernels take."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from tensorplug.device import DeviceError, Unsupported

WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
"""Distributions with the compiler, of CUDA 12 and of later ones."""

_LIBRARY = re.compile(r"(libnvrtc\.so\.\d+|nvrtc64_\w+\.dll)$")
_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_LOCAL = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel needs on one architecture. Sizes are bytes of one item, except `local`."""

    name: str
    architecture: str
    registers: int
    stack: int
    spilled: int
    """What does not fit registers and is written to memory."""
    local: int
    """Local memory of a group."""


@cache
def missing() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if _find():
        return ""
    return f"NVIDIA's compiler is not installed; pip install {WHEELS[0]}"


def version() -> tuple[int, int]:
    """The version of CUDA that the compiler is of. Raises Unsupported."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "version")
    return major.value, minor.value


@cache
def architectures() -> frozenset[str]:
    """The GPUs that the compiler knows, such as `sm_80`. Raises Unsupported."""
    count = ctypes.c_int()
    _check(_nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)), "number of architectures")
    found = (ctypes.c_int * count.value)()
    _check(_nvrtc().nvrtcGetSupportedArchs(found), "list of architectures")
    return frozenset(f"sm_{number}" for number in found)


def compiled(text: str, architecture: str, options: Sequence[str] = ()) -> list[Usage]:
    """Compile `text` for an architecture such as `sm_80`; what each of its kernels takes.

    Raises Unsupported without the compiler, DeviceError with its log.
    """
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    )
    _check(made, "program")
    try:
        wanted = [f"--gpu-architecture={architecture}", "--ptxas-options=-v", "-w", *options]
        passed = (ctypes.c_char_p * len(wanted))(*(option.encode() for option in wanted))
        status = nvrtc.nvrtcCompileProgram(program, len(wanted), passed)
        log = _log(program)
        if status:
            raise DeviceError(f"NVRTC cannot compile for {architecture}:\n{log[:4000]}")
        return [_usage(found) for found in _KERNEL.finditer(log)]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _usage(found: re.Match[str]) -> Usage:
    local = _LOCAL.search(found["rest"])
    return Usage(
        found["name"],
        found["architecture"],
        int(found["registers"]),
        int(found["stack"]),
        int(found["stores"]),
        int(local[1]) if local else 0,
    )


def _log(program: ctypes.c_void_p) -> str:
    nvrtc, size = _nvrtc(), ctypes.c_size_t()
    _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "log")
    log = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetProgramLog(program, log), "log")
    return log.value.decode(errors="replace")


def _check(status: int, what: str) -> None:
    if status:
        raise DeviceError(f"NVRTC: status {status} for a {what}")


@cache
def _nvrtc() -> ctypes.CDLL:
    if missing():
        raise Unsupported(missing())
    return ctypes.CDLL(_find())


def _find() -> str:
    """The file of the compiler in an installed wheel; empty where there is none."""
    for wheel in WHEELS:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if _LIBRARY.search(file.name):
                return str(file.locate())
    return ""
