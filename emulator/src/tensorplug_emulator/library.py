"""Compiled texts: kernels that are launched with addresses of the host's memory."""

import ctypes
import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tensorplug.device import DeviceError
from tensorplug_emulator.compiler import load
from tensorplug_simt.program import Grid


def _in_order(_text: str, kernel: str, section: str) -> str:
    """A kernel that takes its arguments in the order in which a launch has them."""
    return f"SIMT_EXPORT({kernel}, {section})\n"


@dataclass(frozen=True, slots=True)
class Language:
    """What is particular to a language of kernels: its header, and how its kernels are found."""

    name: str
    header: str
    """In the folder of the emulator: gives the names of the language, over `runtime.h`."""
    kernels: re.Pattern[str]
    """Matches the head of a kernel; its group is the name."""
    prepared: Callable[[str], str] = str
    """What the compiler is given in place of a text."""
    exported: Callable[[str, str, str], str] = _in_order
    """From a text, a kernel of it, and its section: what makes the kernel known."""
    block_in_memory: bool = False
    """Kernels get the address of the parameter block, not its bytes."""


CUDA_LANGUAGE = Language(
    "cuda", "languages/cuda.h", re.compile(r'extern\s+"C"\s+__global__\s+void\s+(\w+)\s*\(')
)


class Order(enum.IntEnum):
    """In which order the items of a group have their turns."""

    FORWARD = 0
    REVERSE = 1
    SHUFFLED = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a kernel may read, and write where they are `writable`."""

    name: str
    address: int
    size: int
    writable: bool = True


class _Size(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_ulong),
        ("size", ctypes.c_ulong),
        ("writable", ctypes.c_int),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("groups", _Size),
        ("local", _Size),
        ("memory", ctypes.POINTER(_Memory)),
        ("memories", ctypes.c_uint),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("watched", ctypes.c_int),
    )


class Library:
    """The kernels of one text. Thread-safe: its launches run one at a time."""

    def __init__(self, text: str) -> None:
        self._library = load(text)

    def launch(
        self,
        kernel: str,
        groups: Grid,
        local: Grid,
        arguments: Sequence[bytes],
        memory: Iterable[Memory],
        *,
        order: Order = Order.FORWARD,
        seed: int = 0,
        watched: bool = False,
    ) -> None:
        """Run a kernel to its end; `arguments` are the bytes of each, pointers as 8 bytes.

        Raises DeviceError for accesses outside `memory`, misaligned ones, divergent barriers, and
        items that reach one number of local memory, or of `memory` where that is `watched`, one of
        them writing, with nothing between.
        """
        ranges = list(memory)
        named = [_Memory(m.name.encode(), m.address, m.size, m.writable) for m in ranges]
        kept = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
        addresses = [ctypes.addressof(each) for each in kept]
        request = _Request(
            (ctypes.c_void_p * len(kept))(*addresses),
            _Size(*groups),
            _Size(*local),
            (_Memory * len(named))(*named),
            len(named),
            order,
            seed,
            watched,
        )
        problem = self._function(kernel)(ctypes.byref(request))
        if problem:
            raise DeviceError(f"emulated {problem.decode(errors='replace')}")

    def _function(self, kernel: str) -> "ctypes._NamedFuncPointer":
        try:
            function = self._library[f"emulated_{kernel}"]
        except AttributeError:
            raise DeviceError(f"emulator: the text has no kernel {kernel}") from None
        function.restype = ctypes.c_char_p
        return function


def library(text: str, language: Language = CUDA_LANGUAGE) -> Library:
    """The kernels of a text. Raises Unsupported without a compiler, DeviceError with its log.

    The local memory of all kernels of a text counts as one range.
    """
    names = language.kernels.findall(text)
    exports = "".join(
        language.exported(text, name, "local_memory") for name in dict.fromkeys(names)
    )
    body = language.prepared(text)
    return Library(f"{head(language)}#define SIMT_SECTION local_memory\n{body}\n{exports}")


def head(language: Language) -> str:
    """The first line of a text of `language` for the compiler."""
    return f'#include "{language.header}"\n'
