"""`Recording`: launches that are encoded once and executed again and again.

Metal's command buffers run once. What outlives them are indirect command buffers: a command has its
pipeline, its buffers and its grid, but no bytes of its own, so parameter blocks lie in a buffer.

Not measured on a Mac. To remove it, delete this file and derive `MetalPlan` from `SimtPlan`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import Metal
import numpy as np
import objc

from tensorplug.device import Unsupported
from tensorplug_metal.errors import given
from tensorplug_metal.facts import storage
from tensorplug_metal.launches import Ready
from tensorplug_metal.pages import contents
from tensorplug_simt.dialects.metal import MOST_BUFFERS

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice

MOST_COMMANDS = 16384
"""That one call may execute."""
BLOCK = 256
"""What constant memory starts at multiples of; Apple's GPUs need less."""


class Recording:
    """Launches in indirect command buffers."""

    def __init__(self, device: "MetalDevice", launches: Sequence[Ready]) -> None:
        where = f"{device.name}: recording of {len(launches)} launches"
        rows = [-(-len(launch.block) // BLOCK) * BLOCK for launch in launches]
        starts = np.cumsum([0, *rows])
        self._blocks = given(
            device.handle.newBufferWithLength_options_(int(starts[-1]), storage(private=False)),
            where,
        )
        memory = contents(self._blocks, int(starts[-1]))
        buffers = {id(b): b for launch in launches for b in launch.buffers}
        pipelines = {id(launch.pipeline): launch.pipeline for launch in launches}
        self._buffers = list(buffers.values())
        self._pipelines = [] if device.gpu.keeps_pipelines else list(pipelines.values())
        self._parts: list[tuple[Any, int]] = []
        for first in range(0, len(launches), MOST_COMMANDS):
            part = launches[first : first + MOST_COMMANDS]
            commands = _empty(device, len(part), where)
            for i, launch in enumerate(part):
                start = int(starts[first + i])
                memory[start : start + len(launch.block)] = np.frombuffer(launch.block, np.uint8)
                with objc.autorelease_pool():
                    self._record(commands.indirectComputeCommandAtIndex_(i), launch, start)
            self._parts.append((commands, len(part)))

    def _record(self, command: Any, launch: Ready, start: int) -> None:
        command.setComputePipelineState_(launch.pipeline)
        for i, buffer in enumerate(launch.buffers):
            command.setKernelBuffer_offset_atIndex_(buffer, 0, i)
        command.setKernelBuffer_offset_atIndex_(self._blocks, start, len(launch.buffers))
        if launch.waits:
            command.setBarrier()
        command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(launch.groups, launch.items)

    def encode(self, encoder: Any) -> None:
        """Execute all of it."""
        both = Metal.MTLResourceUsageRead | Metal.MTLResourceUsageWrite
        for buffer in self._buffers:
            encoder.useResource_usage_(buffer, both)
        encoder.useResource_usage_(self._blocks, Metal.MTLResourceUsageRead)
        # Drivers of the M1 and M2 do not find a pipeline that only an indirect command names; a
        # dispatch of no groups makes it known.
        nothing = Metal.MTLSizeMake(0, 0, 0)
        for pipeline in self._pipelines:
            encoder.setComputePipelineState_(pipeline)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(nothing, nothing)
        for i, (commands, count) in enumerate(self._parts):
            if i:
                encoder.memoryBarrierWithScope_(Metal.MTLBarrierScopeBuffers)
            encoder.executeCommandsInBuffer_withRange_(commands, (0, count))


def _empty(device: "MetalDevice", count: int, where: str) -> Any:
    """An indirect command buffer. Raises Unsupported."""
    wanted = Metal.MTLIndirectCommandBufferDescriptor.alloc().init()
    wanted.setCommandTypes_(Metal.MTLIndirectCommandTypeConcurrentDispatch)
    wanted.setInheritBuffers_(False)
    wanted.setInheritPipelineState_(False)
    wanted.setMaxKernelBufferBindCount_(MOST_BUFFERS)
    made = device.handle.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        wanted, count, storage(private=False)
    )
    if made is None:
        raise Unsupported(f"{where}: Metal makes no indirect command buffer here")
    return made
