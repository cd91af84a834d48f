"""`OpenCLDevice`: a device of an OpenCL platform."""

from typing import Any

import numpy as np
import pyopencl as cl

from tensorplug.device import (
    Array,
    Backend,
    Buffer,
    DeviceLost,
    DeviceType,
    as_bytes,
    map_driver_errors,
)
from tensorplug_opencl.backend import OpenCLBackend
from tensorplug_opencl.facts import device_type, facts_of, hardware_id
from tensorplug_opencl.kernels import KERNELS
from tensorplug_opencl.memory import ERRORS, ImportedBuffer, OpenCLBufferType, PinnedBufferType
from tensorplug_opencl.programs import Programs
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.dialects.dialect import OPENCL
from tensorplug_simt.program import Launch
from tensorplug_simt.source import source


class OpenCLDevice(SimtDevice):
    """One device, with a context of its own that is made on first use."""

    backend_class = OpenCLBackend
    kernels = KERNELS
    suffix = ".cl"

    def __init__(self, name: str, driver: Any) -> None:
        super().__init__(name)
        self.driver = driver
        self.total = int(driver.global_mem_size)
        self.facts = facts_of(driver)
        self._context: Any = None
        self._transfers: Any = None
        self._programs: Programs | None = None
        self._memory: OpenCLBufferType = OpenCLBufferType(self)
        self._pinned = PinnedBufferType(self)

    # --- facts -----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return f"{self.driver.name.strip()} ({self.driver.platform.name.strip()})"

    @property
    def type(self) -> DeviceType:
        return device_type(self.driver)

    @property
    def hardware_id(self) -> str:
        return hardware_id(self.driver)

    # --- what the driver gives -------------------------------------------------------------

    @property
    def context(self) -> Any:
        """The driver's context. Raises DeviceLost."""
        self.check_process()
        with self._lock, map_driver_errors({cl.Error: DeviceLost}, f"{self.name}: context"):
            if self._context is None:
                self._context = cl.Context([self.driver])
            return self._context

    @property
    def transfers(self) -> Any:
        """The queue of blocking transfers. Raises DeviceLost."""
        with self._lock:
            if self._transfers is None:
                self._transfers = self.queue()
            return self._transfers

    @property
    def programs(self) -> Programs:
        """The compiled programs."""
        with self._lock:
            if self._programs is None:
                self._programs = Programs(self.context, self.driver)
            return self._programs

    def queue(self, *, timed: bool = False) -> Any:
        """A new in-order queue, whose events know their times where it is `timed`.

        Raises DeviceLost.
        """
        kinds = cl.command_queue_properties
        with map_driver_errors({cl.Error: DeviceLost}, f"{self.name}: queue"):
            return cl.CommandQueue(self.context, properties=kinds.PROFILING_ENABLE if timed else 0)

    # --- memory ----------------------------------------------------------------------------

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Compute on host memory: without a copy where the device shares the host's memory."""
        flat = np.frombuffer(as_bytes(memory), np.uint8)
        access = cl.mem_flags.READ_WRITE if flat.flags.writeable else cl.mem_flags.READ_ONLY
        flags = cl.mem_flags.USE_HOST_PTR | access
        with map_driver_errors(ERRORS, f"{self.name}: import of {flat.size} bytes"):
            mapped = cl.Buffer(self.context, flags, hostbuf=flat)
        return ImportedBuffer(self._memory, mapped, flat)

    # --- work ------------------------------------------------------------------------------

    def text_of(self, launch: Launch) -> str:
        return source(launch, OPENCL)

    def _open(self, options: dict[str, Any]) -> Backend:
        return OpenCLBackend(self, self.queue())
