"""The device: one stream after another, no work left undone."""

import numpy as np

from tensorplug import blocks
from tensorplug.device import Backend, Device, DeviceType, Memory
from tensorplug.dtypes import F16, F32
from tensorplug.errors import Refusal
from tensorplug_arrays.kernels import SIMPLE
from tensorplug_arrays.memory import ArraysBufferType
from tensorplug_arrays.plan import ArraysPlan

OPS = {*SIMPLE, "mul_mat", "rope", "get_rows", "set_rows"}
WEIGHTS = {("mul_mat", 0), ("get_rows", 0), ("flash_attn_ext", 1), ("flash_attn_ext", 2)}
"""Sources that may be of any type that has values."""
IDS = {("get_rows", 1), ("set_rows", 2), ("rope", 1)}
HALF = {("soft_max", 1), ("flash_attn_ext", 3), ("set_rows", 0)}
"""Sources that may be of 16 bits."""
EXTRA = {"rope": 2, "soft_max": 2, "flash_attn_ext": 4}
"""How many sources a kernel takes, where the op has more."""
ONLY = {
    "rope": {"mode": ("normal", "neox"), "ext_factor": (0.0,), "attn_factor": (1.0,)},
    "soft_max": {"max_bias": (0.0,)},
    "flash_attn_ext": {"max_bias": (0.0,), "softcap": (0.0,)},
    "swiglu": {"swapped": (False,)},
    "dup": {"to": ("",)},
}
"""Values of parameters that kernels know."""


class ArraysBackend(Backend):
    plan_class = ArraysPlan

    def __init__(self, device):
        super().__init__(device)
        self.scratch = np.empty(0, np.uint8)
        self.threads = 1

    def _compute(self, node, bindings):
        raise AssertionError("plans do it")

    def _close(self):
        if "streams keep their scratch" not in self.device.faults:
            self.scratch = None


class ArraysDevice(Device):
    backend_class = ArraysBackend
    description = "arrays of the host"
    type = DeviceType.ACCEL
    total = 1 << 34

    def __init__(self, name="arrays:0", faults=()):
        super().__init__(name)
        self.faults = frozenset(faults)
        self.used = 0
        self._memory = ArraysBufferType(self)

    def memory(self):
        lie = self.total if "more memory free than there is" in self.faults else 0
        return Memory(self.total - self.used + lie, self.total)

    @property
    def buffer_type(self):
        return self._memory

    def _open(self, options):
        return ArraysBackend(self)

    def _refuses(self, node, source_types):
        if node.op not in OPS:
            return Refusal(f"no kernel for {node.op}")
        for name, known in ONLY.get(node.op, {}).items():
            if node.params[name] not in known:
                return Refusal(f"{node.op}: no kernel for {name}={node.params[name]}")
        for i, source in enumerate(node.operands):
            if source is not None and not _takes(node, i, source):
                return Refusal(f"{node.op}: no kernel for {source.dtype.name} as source {i}")
        extra = EXTRA.get(node.op, len(node.operands))
        if any(source is not None for source in node.operands[extra:]):
            return Refusal(f"{node.op}: no kernel for factors and sinks")
        if node.dtype not in (F32, F16):
            return Refusal(f"{node.op}: no kernel for {node.dtype.name}")
        return None


def _takes(node, i, source):
    if (node.op, i) in IDS:
        return True
    if (node.op, i) in WEIGHTS:
        return blocks.can_decode(source.dtype)
    if (node.op, i) in HALF or node.op in ("dup", "cont", "cpy") or (node.op, i) == ("set_rows", 0):
        return source.dtype in (F32, F16)
    return source.dtype is F32
