"""Compiled programs: built once per device and variant, kept on disk by PyOpenCL."""

import warnings
from pathlib import Path
from typing import Any

import pyopencl as cl

from tensorplug.errors import DeviceError
from tensorplug_opencl.facts import version_of
from tensorplug_simt import cache
from tensorplug_simt.built import Built
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source

NEWER = frozenset({"SUBGROUP", "DOT"})
"""Constants of kernels that need more than OpenCL C 1.2, which every device has."""


class Programs(Built):
    """The compiled programs of one device. Thread-safe."""

    def __init__(self, context: Any, device: Any) -> None:
        super().__init__()
        self._context = context
        self._device = device

    def kernel(self, launch: Launch, parts: int = 0) -> Any:
        """A kernel object of its own for `launch`, or for `parts` like it merged into one.

        Raises DeviceError with the compiler's log.
        """
        program = self.once((*launch.variant, parts), lambda: self._build(launch, parts))
        return cl.Kernel(program, launch.kernel.name)

    def _build(self, launch: Launch, parts: int) -> Any:
        text = source(launch, OPENCL, parts=parts)
        program = cl.Program(self._context, text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers log every build
                return program.build([self._language(launch)], cache_dir=str(cache_folder()))
        except cl.RuntimeError as error:
            raise DeviceError(
                f"{self._device.name}: the driver {self._device.driver_version} cannot compile "
                f"kernel {launch.kernel.name} {dict(launch.defines)}: {error}"
            ) from error

    def _language(self, launch: Launch) -> str:
        """The OpenCL C that every device has, and a newer one where the kernel needs it."""
        if not NEWER & launch.defines.keys():
            return "-cl-std=CL1.2"
        return "-cl-std=CL3.0" if version_of(self._device) >= (3, 0) else "-cl-std=CL2.0"


def cache_folder() -> Path:
    """Where programs and choices are kept on disk."""
    folder = cache.cache_folder("opencl")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
