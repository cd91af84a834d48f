"""`CPUDevice`: the processor and the host's memory."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tensorplug.device import (
    Array,
    Backend,
    Buffer,
    BufferType,
    Device,
    DeviceType,
    HostBuffer,
    Memory,
    Option,
    OptionError,
    Refusal,
    Tensor,
    Unsupported,
    as_bytes,
)
from tensorplug.dtypes import DType
from tensorplug_cpu import host
from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.memory import CPUBufferType, ExpandedBufferType, MappedBufferType
from tensorplug_cpu.support import refusal
from tensorplug_cpu.threads import Workers, available_cores

NUMA_STRATEGIES = ("disabled", "distribute", "isolate", "numactl", "mirror")


class CPUDevice(Device):
    """All cores that the process may use, as one device.

    Weights may lie in memory of an extra buffer type, `cpu_f32`, which stores them expanded to f32.
    """

    backend_class = CPUBackend
    options: ClassVar[tuple[Option, ...]] = (
        Option("threads", int, 0, "threads to compute with; 0 for all cores of the process"),
    )

    def __init__(self, name: str = "cpu:0") -> None:
        super().__init__(name)
        self._workers = Workers(available_cores())
        self._own = CPUBufferType(self)
        self._mapped = MappedBufferType(self)
        self.expanded = ExpandedBufferType(self, self._workers)

    # --- facts -----------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return host.processor_name()

    @property
    def type(self) -> DeviceType:
        return DeviceType.CPU

    def memory(self) -> Memory:
        return host.memory()

    # --- memory ----------------------------------------------------------------------------

    @property
    def buffer_type(self) -> BufferType:
        return self._own

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return (self.expanded,)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        # Any memory that the host sees will do, whoever made it.
        return buffer_type.is_host or buffer_type is self.expanded

    def import_host(self, memory: Array, *, largest_tensor: int = 0) -> Buffer:
        """Wrap contiguous host memory, read-only or not, without a copy."""
        return HostBuffer(self._mapped, np.frombuffer(as_bytes(memory), np.uint8))

    # --- work ------------------------------------------------------------------------------

    def _open(self, options: dict[str, Any]) -> Backend:
        threads = options["threads"]
        if threads < 0:
            raise OptionError(
                f"{self.name}: option threads={threads} is negative; use 0 for all cores"
            )
        return CPUBackend(self, threads or available_cores())

    def _refuses(self, node: Tensor, source_types: Mapping[Tensor, BufferType]) -> Refusal | None:
        reason = refusal(node, source_types)
        return Refusal(f"{self.name}: {reason}") if reason else None

    def encode_rows(
        self, dtype: DType, values: Array, out: Array, importance: Array | None = None
    ) -> None:
        """Encode f32 rows into stored rows on the calling thread: see `tensorplug_cpu.encode`.

        The bytes are the same on every device that offers this.
        """
        encode_rows(dtype, values, out, importance)

    # --- NUMA ------------------------------------------------------------------------------

    @property
    def is_numa(self) -> bool:
        """Whether the machine has more than one node."""
        return host.numa_nodes() > 1

    def init_numa(self, strategy: str) -> None:
        """Choose how threads and memory spread over nodes. Raises OptionError, Unsupported.

        On a machine with one node every strategy is the same. `numactl` leaves all to the command
        of that name, which `disabled` does too. The others would need threads bound to nodes, which
        the BLAS does not offer.
        """
        if strategy not in NUMA_STRATEGIES:
            known = ", ".join(NUMA_STRATEGIES)
            raise OptionError(
                f"{self.name}: unknown NUMA strategy {strategy!r}; choose from {known}"
            )
        if self.is_numa and strategy not in ("disabled", "numactl"):
            raise Unsupported(
                f"{self.name}: NUMA strategy {strategy!r} needs threads bound to nodes, which "
                "NumPy's BLAS does not offer; start the program with numactl, or use 'disabled'"
            )

    def _close(self) -> None:
        self._workers.close()
