"""A stand-in for PyObjC's `Metal` where there is no Mac: the calls that the metal backend makes.

Its results are *emulated*. Names, arguments and results are PyObjC's: a call that gives an object
and an error returns both as a tuple. It is stricter than Metal is: see `_machine`.
"""

from typing import Any

from Metal._capture import MTLCaptureDescriptor, MTLCaptureManager
from Metal._commands import Fence, Queue, SharedEvent
from Metal._encoders import IndirectCommands
from Metal._kernels import (
    Function,
    MetalLibrary,
    MTLCompileOptions,
    Pipeline,
    made_library,
    made_pipeline,
)
from Metal._machine import Gpu, NSError, machine, need
from Metal._memory import Buffer, wrapped
from Metal._residency import MTLResidencySetDescriptor, ResidencySet

EMULATED = True

MTLResourceStorageModeShared, MTLResourceStorageModePrivate = 0, 32
MTLDispatchTypeSerial, MTLDispatchTypeConcurrent = 0, 1
MTLBarrierScopeBuffers = 1
MTLResourceUsageRead, MTLResourceUsageWrite = 1, 2
MTLIndirectCommandTypeConcurrentDispatch = 32
MTLCommandBufferStatusCompleted, MTLCommandBufferStatusError = 4, 5
MTLGPUFamilyApple7, MTLGPUFamilyMetal3 = 1007, 5001
MTLMathModeSafe = 0
MTLCaptureDestinationGPUTraceDocument = 2

__all__ = [
    "MTLCaptureDescriptor",
    "MTLCaptureManager",
    "MTLCompileOptions",
    "MTLResidencySetDescriptor",
]


class MTLSize(tuple):  # type: ignore[type-arg] # as PyObjC's structs are sequences
    """MTLSize."""

    __slots__ = ()

    def __new__(cls, width: int, height: int, depth: int) -> "MTLSize":
        return super().__new__(cls, (width, height, depth))

    width = property(lambda self: self[0])
    height = property(lambda self: self[1])
    depth = property(lambda self: self[2])


def MTLSizeMake(width: int, height: int, depth: int) -> MTLSize:
    return MTLSize(width, height, depth)


class MTLIndirectCommandBufferDescriptor:
    """MTLIndirectCommandBufferDescriptor."""

    @classmethod
    def alloc(cls) -> "MTLIndirectCommandBufferDescriptor":
        return cls.__new__(cls)

    def init(self) -> "MTLIndirectCommandBufferDescriptor":
        self.types, self.most_buffers = 0, 0
        self.inherits = {"buffers": True, "pipeline": True}
        return self

    def setCommandTypes_(self, types: int) -> None:
        self.types = types

    def setInheritBuffers_(self, inherit: bool) -> None:
        self.inherits["buffers"] = bool(inherit)

    def setInheritPipelineState_(self, inherit: bool) -> None:
        self.inherits["pipeline"] = bool(inherit)

    def setMaxKernelBufferBindCount_(self, count: int) -> None:
        self.most_buffers = count


class MTLComputePipelineDescriptor:
    """MTLComputePipelineDescriptor."""

    @classmethod
    def alloc(cls) -> "MTLComputePipelineDescriptor":
        return cls.__new__(cls)

    def init(self) -> "MTLComputePipelineDescriptor":
        self.function: Function | None = None
        self.indirect = False
        self.most_items = 0
        return self

    def setComputeFunction_(self, function: Function) -> None:
        self.function = function

    def setSupportIndirectCommandBuffers_(self, support: bool) -> None:
        self.indirect = bool(support)

    def setMaxTotalThreadsPerThreadgroup_(self, count: int) -> None:
        self.most_items = count

    def setLabel_(self, label: str) -> None:
        pass


class Device:
    """MTLDevice."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def name(self) -> str:
        return self._gpu.name

    def registryID(self) -> int:
        return self._gpu.registry_id

    def supportsFamily_(self, family: int) -> bool:
        return family in self._gpu.families

    def recommendedMaxWorkingSetSize(self) -> int:
        return self._gpu.working_set

    def currentAllocatedSize(self) -> int:
        return self._gpu.allocated

    def maxBufferLength(self) -> int:
        return self._gpu.max_buffer

    def maxThreadgroupMemoryLength(self) -> int:
        return self._gpu.group_memory

    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(self._gpu.most_items, self._gpu.most_items, self._gpu.most_items)

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        most = self._gpu.max_buffer
        need(0 < length <= most, f"a buffer of {length} bytes, at most {most}")
        if self._gpu.allocated + length > self._gpu.working_set:
            return None
        return Buffer(self._gpu, length, options)

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, pages: Any, length: int, options: int, deallocator: Any
    ) -> Buffer | None:
        need(deallocator is None, "a deallocator, which the stand-in does not call")
        return wrapped(self._gpu, pages, length, options)

    def newCommandQueue(self) -> Queue:
        return Queue(self._gpu)

    def newFence(self) -> Fence:
        return Fence(self._gpu)

    def newSharedEvent(self) -> SharedEvent:
        return SharedEvent()

    def newLibraryWithSource_options_error_(
        self, text: str, options: Any, error: None
    ) -> tuple[MetalLibrary | None, NSError | None]:
        return made_library(self._gpu, text, options)

    def newComputePipelineStateWithFunction_error_(
        self, function: Function, error: None
    ) -> tuple[Pipeline | None, NSError | None]:
        return made_pipeline(self._gpu, function, indirect=False)

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, wanted: MTLComputePipelineDescriptor, options: int, reflection: None, error: None
    ) -> tuple[Pipeline | None, NSError | None]:
        need(wanted.function is not None, "a pipeline without a function")
        assert wanted.function is not None
        return made_pipeline(self._gpu, wanted.function, indirect=wanted.indirect)

    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, wanted: MTLIndirectCommandBufferDescriptor, count: int, options: int
    ) -> IndirectCommands:
        need(wanted.types == MTLIndirectCommandTypeConcurrentDispatch, "other types of commands")
        need(not any(wanted.inherits.values()), "commands that inherit state that is not set")
        return IndirectCommands(wanted.most_buffers, count)

    def newResidencySetWithDescriptor_error_(
        self, wanted: MTLResidencySetDescriptor, error: None
    ) -> tuple[ResidencySet, None]:
        return ResidencySet(self._gpu), None


def MTLCopyAllDevices() -> tuple[Device, ...]:
    """The devices of the machine, the same objects each time."""
    known = [device._gpu for device in machine.devices]
    if known != machine.gpus:
        machine.devices = [Device(gpu) for gpu in machine.gpus]
    return tuple(machine.devices)
