"""Kernels: compiled and run by the emulator of tensorplug-emulator."""

import math
from functools import cache
from typing import Any

import numpy as np

from cupy._machine import ILLEGAL_ADDRESS, CUDARuntimeError, alive, machine
from cupy.cuda.driver import CUDADriverError
from cupy.cuda.errors import CompileException
from cupy.cuda.memory import MemoryPointer
from tensorplug.device import DeviceError
from tensorplug_emulator import Library, Memory, library, missing

MOST_ITEMS, MOST_DEEP = 1024, 64
LONGEST = (2**31 - 1, 65535, 65535)
OUT_OF_RESOURCES = 701
PARAMETERS = 4096
"""Bytes of all arguments of a kernel, as every GPU grants them."""


class Module:
    """A program; here its binary is its text."""

    def load(self, cubin: bytes) -> None:
        machine.no_capture("a program is loaded")
        if cubin.startswith(b"damaged"):
            raise CUDADriverError(200, "CUDA_ERROR_INVALID_IMAGE")
        self._library = compiled(cubin.decode())

    def get_function(self, name: str) -> "Function":
        return Function(self._library, name)


class Launch:
    """A launch that waits in a stream or in a graph, with the bytes of its arguments."""

    def __init__(
        self,
        function: "Function",
        grid: tuple[int, ...],
        block: tuple[int, ...],
        values: list[bytes],
        places: list[int],
    ) -> None:
        self.function, self.grid, self.block = function, grid, block
        self.values, self.places = values, places
        pointers = [int.from_bytes(values[i], "little") for i in places]
        self._used = [machine.reachable(pointer, function.ordinal) for pointer in pointers]

    def __call__(self) -> None:
        alive(self._used)
        memory = [Memory(f"argument {i}", a.start, a.size) for i, a in enumerate(self._used)]
        function = self.function
        try:
            function.library.launch(function.name, self.grid, self.block, self.values, memory)
        except DeviceError as error:
            raise CUDARuntimeError(ILLEGAL_ADDRESS, str(error)) from error

    def with_values(self, values: list[bytes]) -> "Launch":
        """The same with other arguments."""
        return Launch(self.function, self.grid, self.block, values, self.places)


class Function:
    """A kernel on the GPU that was current when it was loaded."""

    def __init__(self, library: Library, name: str) -> None:
        self.ordinal = machine.current
        self.name = name
        self.library = library

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Any,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        assert stream is not None, "the stand-in has no current stream"
        with machine.lock:
            queue = machine.queue(stream.ptr)
            self._check(grid, block, queue.ordinal)
            machine.check(self.ordinal)
            if machine.failing:
                machine.failing = False
                raise CUDADriverError(OUT_OF_RESOURCES, "as the test asked for")
            values = [_value(arg) for arg in args]
            if sum(len(value) for value in values) > PARAMETERS:
                raise CUDADriverError(1, "too many bytes of arguments")
            if shared_mem:
                raise CUDADriverError(1, "the stand-in grants no local memory by the launch")
            places = [i for i, arg in enumerate(args) if isinstance(arg, MemoryPointer)]
            job = Launch(self, grid, block, values, places)
            machine.launches += 1
            queue.put(job, self.name)

    def _check(self, grid: tuple[int, ...], block: tuple[int, ...], ordinal: int) -> None:
        if machine.current != self.ordinal or ordinal != self.ordinal:
            raise CUDADriverError(400, "a function, a stream or the current GPU is another's")
        if any(not 1 <= n <= most for n, most in zip(grid, LONGEST, strict=True)):
            raise CUDADriverError(1, f"a grid of {grid}")
        if not 1 <= math.prod(block) <= MOST_ITEMS or block[2] > MOST_DEEP:
            raise CUDADriverError(1, f"groups of {block}")


def _value(arg: Any) -> bytes:
    """The bytes of an argument, as they are at this moment."""
    if isinstance(arg, MemoryPointer):
        return np.uint64(arg.ptr).tobytes()
    if isinstance(arg, np.ndarray):
        if arg.size != 1:
            raise TypeError(f"Unsupported type {type(arg)}: an array of {arg.size} elements")
        return arg.tobytes()
    if isinstance(arg, np.generic):
        return arg.tobytes()
    raise TypeError(f"Unsupported type {type(arg)}")


def compile_using_nvrtc(source: str, options: tuple[str, ...] = ()) -> tuple[bytes, None]:
    """The binary of a text, and no names of templates."""
    if not isinstance(options, tuple):
        raise TypeError("can only concatenate tuple to tuple")
    machine.compilations += 1
    compiled(source)
    return source.encode(), None


@cache
def compiled(code: str) -> Library:
    """The kernels of a text. Raises what CuPy raises where it does not compile."""
    if missing():
        raise CompileException(missing())
    try:
        return library(code)
    except DeviceError as error:
        raise CompileException(str(error)) from error
