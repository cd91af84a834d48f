"""A tiny run on a GPU, to see that it works at all."""

from typing import Any

import Metal
import numpy as np
import objc

from tensorplug.device import DeviceError
from tensorplug_metal.errors import failure, given, made
from tensorplug_metal.facts import storage
from tensorplug_metal.pages import contents
from tensorplug_simt.dialects.metal import SIMDGROUP

TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void probe(device float* x [[buffer(0)]], uint3 place [[thread_position_in_threadgroup]]) {
  x[place.x] = 2.0f * x[place.x] + simd_sum(1.0f);
}
"""


def probe(handle: Any, name: str) -> None:
    """Compile a kernel and run it on some numbers. Raises DeviceError, OutOfMemory."""
    where = f"{name}: probe"
    library = made(handle.newLibraryWithSource_options_error_(TEXT, None, None), where)
    function = library.newFunctionWithName_("probe")
    pipeline = made(handle.newComputePipelineStateWithFunction_error_(function, None), where)
    if pipeline.threadExecutionWidth() != SIMDGROUP:
        raise DeviceError(
            f"{name}: its simdgroups have {pipeline.threadExecutionWidth()} items; kernels need "
            f"{SIMDGROUP}"
        )
    buffer = given(
        handle.newBufferWithLength_options_(4 * SIMDGROUP, storage(private=False)), where
    )
    numbers = contents(buffer, 4 * SIMDGROUP).view(np.float32)
    numbers[:] = np.arange(SIMDGROUP)
    with objc.autorelease_pool():
        commands = handle.newCommandQueue().commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
        one, items = Metal.MTLSizeMake(1, 1, 1), Metal.MTLSizeMake(SIMDGROUP, 1, 1)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(one, items)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
    error = failure(commands, where)
    if error is not None:
        raise error
    if numbers.tolist() != [2.0 * i + SIMDGROUP for i in range(SIMDGROUP)]:
        raise DeviceError(f"{name}: a kernel computed something else than it should have")
