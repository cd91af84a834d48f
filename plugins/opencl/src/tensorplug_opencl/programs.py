"""Compiled programs: built once per device and variant, kept on disk by PyOpenCL."""

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import platformdirs
import pyopencl as cl

from tensorplug.errors import DeviceError
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source


class Programs:
    """The compiled programs of one device. Thread-safe."""

    def __init__(self, context: Any, device: Any) -> None:
        self._context = context
        self._device = device
        self._built: dict[tuple[object, ...], Any] = {}
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many programs were built or loaded."""
        return len(self._built)

    def kernel(self, launch: Launch) -> Any:
        """A kernel object of its own for `launch`. Raises DeviceError with the compiler's log."""
        with self._lock:
            program = self._built.get(launch.variant)
            if program is None:
                program = self._built[launch.variant] = self._build(launch)
        return cl.Kernel(program, launch.kernel.name)

    def _build(self, launch: Launch) -> Any:
        text = source(launch, OPENCL)
        program = cl.Program(self._context, text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers log every build
                return program.build(["-cl-std=CL1.2"], cache_dir=str(_cache()))
        except cl.RuntimeError as error:
            raise DeviceError(
                f"{self._device.name}: the driver {self._device.driver_version} cannot compile "
                f"kernel {launch.kernel.name} {dict(launch.defines)}: {error}"
            ) from error


def _cache() -> Path:
    folder = (
        Path(os.environ.get("TENSORPLUG_CACHE") or platformdirs.user_cache_dir("tensorplug"))
        / "opencl"
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder
