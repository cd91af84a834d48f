"""Kernels: compiled and run by the emulator of tensorplug-emulator."""

from functools import cache
from typing import Any

import numpy as np

from Metal._machine import PAGE_FAULT, Gpu, GpuError, NSError, machine, need
from Metal._memory import Buffer
from tensorplug.device import DeviceError
from tensorplug_emulator import Library, Memory, Order, library, missing
from tensorplug_emulator.metal import METAL_LANGUAGE, expanded
from tensorplug_emulator.msl import Head, heads
from tensorplug_emulator.msl_rules import local_bytes, problems

DOMAIN = "MTLLibraryErrorDomain"


class Compiled:
    """The kernels of a text, and what their heads say."""

    def __init__(self, text: str) -> None:
        plain = expanded(text)
        found = problems(plain)
        if found:
            raise DeviceError("program_source: " + "; ".join(found))
        self.library: Library = library(text, METAL_LANGUAGE)
        self.heads: dict[str, Head] = {head.name: head for head in heads(text)}
        self.local = local_bytes(plain)


compiled = cache(Compiled)
"""Texts that were compiled before are known to the process."""


class Function:
    """MTLFunction."""

    def __init__(self, owner: "MetalLibrary", name: str) -> None:
        self.owner, self._name = owner, name

    def name(self) -> str:
        return self._name


class MetalLibrary:
    """MTLLibrary."""

    def __init__(self, gpu: Gpu, text: str) -> None:
        self.gpu = gpu
        self.compiled = compiled(text)

    def functionNames(self) -> tuple[str, ...]:
        return tuple(self.compiled.heads)

    def newFunctionWithName_(self, name: str) -> Function | None:
        return Function(self, name) if name in self.compiled.heads else None


def made_library(gpu: Gpu, text: str, options: Any) -> tuple[MetalLibrary | None, NSError | None]:
    """A library, or what the compiler says."""
    need(options is None or isinstance(options, MTLCompileOptions), "other options")
    machine.compilations += 1
    try:
        if missing():
            raise DeviceError(missing())
        return MetalLibrary(gpu, text), None
    except DeviceError as error:
        return None, NSError(DOMAIN, 3, str(error))


class Pipeline:
    """MTLComputePipelineState."""

    def __init__(self, gpu: Gpu, function: Function, *, indirect: bool) -> None:
        need(function.owner.gpu is gpu, "a function of another device")
        self.gpu, self.indirect = gpu, indirect
        self.name = function.name()
        self._compiled = function.owner.compiled
        parameters = self._compiled.heads[self.name].parameters
        self.indices = [p.place for p in parameters if p.attribute == "buffer"]
        self._writable = {
            p.place: not p.kind.startswith("constant") and "const" not in p.kind.split()
            for p in parameters
        }

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self.gpu.most_items

    def threadExecutionWidth(self) -> int:
        return 32

    def staticThreadgroupMemoryLength(self) -> int:
        return self._compiled.local

    def launch(
        self,
        groups: tuple[int, int, int],
        items: tuple[int, int, int],
        buffers: dict[int, tuple[Buffer, int]],
    ) -> None:
        """Run it. Raises GpuError."""
        places = [buffers.get(i, (None, 0)) for i in range(max(self.indices) + 1)]
        addresses = [buffer.address + offset if buffer else 0 for buffer, offset in places]
        # One range for memory that is bound twice: what the kernel may write of it, it may.
        writable: dict[int, bool] = {}
        for i, (buffer, _) in enumerate(places):
            if buffer is not None and i in self._writable:
                known = writable.get(buffer.address, False)
                writable[buffer.address] = known or self._writable[i]
        sizes = {buffer.address: buffer.size for buffer, _ in places if buffer is not None}
        memory = [Memory(f"at {a:#x}", a, sizes[a], may) for a, may in writable.items()]
        values = [np.uint64(address).tobytes() for address in addresses]
        try:
            self._compiled.library.launch(
                self.name, groups, items, values, memory, order=Order(machine.items)
            )
        except DeviceError as error:
            raise GpuError(PAGE_FAULT, str(error)) from error


def made_pipeline(
    gpu: Gpu, function: Function, *, indirect: bool
) -> tuple[Pipeline | None, NSError | None]:
    """A pipeline, or why there is none."""
    pipeline = Pipeline(gpu, function, indirect=indirect)
    local = pipeline.staticThreadgroupMemoryLength()
    if local > gpu.group_memory:
        text = f"Threadgroup memory size ({local}) exceeds the maximum allowed ({gpu.group_memory})"
        return None, NSError("AGXMetalG13X", 3, text)
    return pipeline, None


class MTLCompileOptions:
    """MTLCompileOptions."""

    @classmethod
    def alloc(cls) -> "MTLCompileOptions":
        return cls.__new__(cls)

    def init(self) -> "MTLCompileOptions":
        self.fast, self.version = True, 0
        return self

    def setFastMathEnabled_(self, enabled: bool) -> None:
        self.fast = bool(enabled)

    def setMathMode_(self, mode: int) -> None:
        self.fast = mode == 2

    def setLanguageVersion_(self, version: int) -> None:
        self.version = version
