"""Compiled programs: one pipeline for each variant of a kernel.

They are not kept on disk: macOS keeps what it has compiled, by its text.
"""

import math
from typing import TYPE_CHECKING, Any

import Metal

from tensorplug.device import DeviceError
from tensorplug_metal import system
from tensorplug_metal.errors import made
from tensorplug_simt.built import Built
from tensorplug_simt.dialects.metal import FAST_MATH, SIMDGROUP, metal_source, symbol
from tensorplug_simt.program import Launch

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice

MATH_MODES = (15, 0)
"""The first macOS that has them; before it there is one switch."""


class Programs(Built):
    """The pipelines of one device. Thread-safe."""

    def __init__(self, device: "MetalDevice") -> None:
        super().__init__()
        self._device = device

    def pipeline(self, launch: Launch, *, parts: int = 0) -> Any:
        """The pipeline of `launch`, or of `parts` like it merged into one.

        Raises DeviceError with the compiler's log, or where a group is too large for the kernel.
        """
        items = math.prod(launch.local)
        variant = (*launch.variant, parts, items)
        return self.once(variant, lambda: self._build(launch, parts, items))

    def _build(self, launch: Launch, parts: int, items: int) -> Any:
        handle, name = self._device.handle, symbol(launch)
        where = f"{self._device.name}: kernel {launch.kernel.name} {dict(launch.defines)}"
        text = metal_source(launch, parts=parts)
        library = made(
            handle.newLibraryWithSource_options_error_(text, _options(), None), f"{where}: compile"
        )
        wanted = Metal.MTLComputePipelineDescriptor.alloc().init()
        wanted.setLabel_(name)
        wanted.setComputeFunction_(library.newFunctionWithName_(name))
        # Without this limit the compiler may use too many registers for a group of this size.
        wanted.setMaxTotalThreadsPerThreadgroup_(-(-items // SIMDGROUP) * SIMDGROUP)
        wanted.setSupportIndirectCommandBuffers_(True)
        pipeline = made(
            handle.newComputePipelineStateWithDescriptor_options_reflection_error_(
                wanted, 0, None, None
            ),
            f"{where}: pipeline",
        )
        if pipeline.threadExecutionWidth() != SIMDGROUP:
            raise DeviceError(
                f"{where}: its simdgroups have {pipeline.threadExecutionWidth()} items; kernels "
                f"need {SIMDGROUP}"
            )
        if items > pipeline.maxTotalThreadsPerThreadgroup():
            raise DeviceError(
                f"{where}: groups of {items} items, and it runs with at most "
                f"{pipeline.maxTotalThreadsPerThreadgroup()} here"
            )
        return pipeline


def _options() -> Any:
    """How texts are compiled: kernels look for NaN, which fast mathematics takes for absent."""
    options = Metal.MTLCompileOptions.alloc().init()
    if system.version() >= MATH_MODES:
        options.setMathMode_(Metal.MTLMathModeSafe)
    else:
        options.setFastMathEnabled_(FAST_MATH)
    return options
