"""Compiled programs: built once per device and variant, and kept on disk.

PyOpenCL would keep them too, but it ends the program where its files are damaged or cannot be
written, waits a minute for a lock that a killed process left, and unpickles what it finds.
"""

import hashlib
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

import pyopencl as cl
from pyopencl import invoker
from pyopencl.characterize import has_src_build_cache

from tensorplug.device import DeviceError
from tensorplug.system.cache import Cache
from tensorplug_opencl.facts import version_of
from tensorplug_simt.built import Built
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source

CACHE = Cache("opencl", ".bin")
"""Programs by platform, device, driver, options and text."""
NEWER = frozenset({"SUBGROUP", "DOT"})
"""Constants of kernels that need more than OpenCL C 1.2, which every device has."""


def _generate_calls_once() -> None:
    """Let PyOpenCL generate the code that calls a kernel once for each name and list of arguments.

    It remembers that code only in its cache on disk, which `drivers.settle_caches` switches off.
    Without this each kernel object would generate it again, and leave it in `linecache` for ever.
    """
    name = "_generate_enqueue_and_set_args_module"
    generate = getattr(invoker, name, None)  # PyOpenCL's own: another version may lack it
    if callable(generate) and not hasattr(generate, "cache_info"):
        setattr(invoker, name, cache(generate))


class Programs(Built):
    """The compiled programs of one device. Thread-safe."""

    def __init__(self, context: Any, device: Any) -> None:
        super().__init__()
        self._context = context
        self._device = device
        _generate_calls_once()

    def kernel(self, launch: Launch, parts: int = 0) -> Any:
        """A kernel object of its own for `launch`, or for `parts` like it merged into one.

        Raises DeviceError with the compiler's log.
        """
        program = self.once((*launch.variant, parts), lambda: self._build(launch, parts))
        return cl.Kernel(program, launch.kernel.name)

    def _build(self, launch: Launch, parts: int) -> Any:
        text, options = source(launch, OPENCL, parts=parts), self._language(launch)
        # PoCL and NVIDIA's driver keep programs by themselves.
        file = "" if has_src_build_cache(self._device) else self._file(text, options)
        kept = CACHE.read(file) if file else None
        if kept is not None:
            # The driver refuses what another build of it made: the program is built again.
            with suppress(cl.Error):
                return built(cl.Program(self._context, [self._device], [kept]), options)
        try:
            program = built(cl.Program(self._context, text), options)
        except cl.RuntimeError as error:
            raise DeviceError(
                f"{self._device.name}: the driver {self._device.driver_version} cannot compile "
                f"kernel {launch.kernel.name} {dict(launch.defines)}: {error}"
            ) from error
        if file:
            with suppress(cl.Error):  # a driver may have no binaries to give
                CACHE.write(file, program.get_info(cl.program_info.BINARIES)[0])
        return program

    def _file(self, text: str, options: str) -> str:
        """The name under which the program of a text is kept."""
        device, platform = self._device, self._device.platform
        made = (
            *(platform.vendor, platform.name, platform.version),
            *(device.vendor, device.name, device.version, device.driver_version),
            *(options, text),
        )
        return f"{hashlib.sha256(repr(made).encode()).hexdigest()[:32]}.bin"

    def _language(self, launch: Launch) -> str:
        """The OpenCL C that every device has, and a newer one where the kernel needs it."""
        if not NEWER & launch.defines.keys():
            return "-cl-std=CL1.2"
        return "-cl-std=CL3.0" if version_of(self._device) >= (3, 0) else "-cl-std=CL2.0"


def built(program: Any, options: str) -> Any:
    """Compile or link `program`, without warnings, which PoCL would count on standard error.

    Raises pyopencl.Error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers log every build
        return program.build([options, "-w"], cache_dir=False)
