"""The compiled library: where it is, which instruction-set levels it has, and its functions."""

import ctypes
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorplug.device import BackendUnavailable, OptionError
from tensorplug_native.headers import interface
from tensorplug_native.program import NODE

VARIABLE = "TENSORPLUG_NATIVE_LEVEL"
"""Names the instruction-set level of streams that are opened without the option `level`."""
AUTO = "auto"

Poll: Any = ctypes.CFUNCTYPE(ctypes.c_int)
"""Asked by the library every few milliseconds; anything but 0 stops the run."""


class Outcome(ctypes.Structure):
    """How a run ended."""

    _fields_ = (("code", ctypes.c_int32), ("node", ctypes.c_int32), ("value", ctypes.c_int64))


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction-set level that this processor runs; `index` is what the library calls it."""

    name: str
    index: int


class Library:
    """The functions of the library at `path`. Calls release the GIL."""

    def __init__(self, path: str) -> None:
        loaded = ctypes.CDLL(path)
        where, size = ctypes.c_void_p, ctypes.c_int64
        self.pool_new = _function(
            *(loaded, "tpn_pool_new", where, ctypes.c_int),
            *(ctypes.POINTER(ctypes.c_int), ctypes.c_int),
        )
        self.pool_delete = _function(loaded, "tpn_pool_delete", None, where)
        self.prepare = _function(
            loaded, "tpn_prepare", size, ctypes.c_int, where, ctypes.c_int, ctypes.c_int
        )
        self.run = _function(
            *(loaded, "tpn_run", ctypes.c_int, ctypes.c_int, where, where),
            *(ctypes.c_int, where, Poll, ctypes.POINTER(Outcome)),
        )
        move = (ctypes.c_int, where, ctypes.c_int64, ctypes.c_int64, where)
        self.pack = _function(loaded, "tpn_pack", ctypes.c_int, *move)
        self.unpack = _function(loaded, "tpn_unpack", ctypes.c_int, *move)
        self.encode = _function(
            *(loaded, "tpn_encode", ctypes.c_int),
            *(ctypes.c_int, ctypes.c_int, where, size, size, where, where),
        )
        self._check(path, loaded)
        self.levels = self._usable_levels(loaded)

    @staticmethod
    def _check(path: str, loaded: ctypes.CDLL) -> None:
        abi = _function(loaded, "tpn_abi", ctypes.c_int)()
        size = _function(loaded, "tpn_node_size", ctypes.c_int64)()
        if (abi, size) != (interface(), NODE.itemsize):
            raise BackendUnavailable(
                f"tensorplug-native: {path} is of another build: interface {abi} with nodes of "
                f"{size} bytes, wanted {interface()} with {NODE.itemsize}; install the "
                f"distribution again"
            )

    @staticmethod
    def _usable_levels(loaded: ctypes.CDLL) -> dict[str, Level]:
        function = _function(
            loaded, "tpn_level", ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
        )
        found, index, usable = {}, 0, ctypes.c_int()
        while (name := function(index, ctypes.byref(usable))) is not None:
            if usable.value:
                found[name.decode()] = Level(name.decode(), index)
            index += 1
        return found

    def level(self, wanted: str) -> Level:
        """The level called `wanted`; for `auto` that of the environment, or the best.

        Raises OptionError.
        """
        where = "option level"
        if wanted == AUTO:
            where, wanted = VARIABLE, os.environ.get(VARIABLE) or AUTO
        if wanted == AUTO:
            return list(self.levels.values())[-1]
        if wanted not in self.levels:
            raise OptionError(
                f"tensorplug-native: {where}={wanted}: this processor and this build have "
                f"{', '.join(self.levels)}; choose one of them, or {AUTO}"
            )
        return self.levels[wanted]


def _function(loaded: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(loaded, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # what ctypes gives has no type


def location() -> str | None:
    """The path of the library; None where the distribution was built without a compiler."""
    # It has the name of an extension module, so that editable installs find it; it is not one.
    found = importlib.util.find_spec("tensorplug_native._native")
    return None if found is None else found.origin


@cache
def library() -> Library:
    """The library of this installation. Raises BackendUnavailable."""
    path = location()
    if path is None:
        raise BackendUnavailable(
            "tensorplug-native: built without a compiler: the wheel holds no kernels; install a "
            "C++ compiler and build it again, or use cpu@tensorplug-cpu"
        )
    return Library(path)
