"""A plan: one call for each node, with the arrays of its tensors resolved."""

import numpy as np

from tensorplug import blocks
from tensorplug.device import BufferUsage, Plan
from tensorplug.dtypes import F32
from tensorplug.graph.tensor import array_view
from tensorplug_arrays import kernels

ANGLES_AND_MASKS = {("rope", 1), ("soft_max", 1), ("flash_attn_ext", 3)}
"""Sources that such a plan keeps."""


class ArraysPlan(Plan):
    def __init__(self, backend, bound):
        super().__init__(backend, bound)
        self.faults = backend.device.faults
        self.decoded = {}
        self.first = {}
        self.resolve()

    def resolve(self):
        self.calls = [(node, self.stored(node)) for node in self.bound.work]

    def _rebind(self):
        if "rebind does nothing" not in self.faults:
            self.decoded, self.first = {}, {}
            self.resolve()

    def _run(self):
        with np.errstate(all="ignore"):
            for node, out in self.calls:
                self.compute(node, out)

    def _close(self):
        if "plans keep their memory" not in self.faults:
            self.calls, self.decoded, self.first = [], {}, {}

    # --- values ----------------------------------------------------------------------------

    def stored(self, tensor):
        """The memory of a tensor as it is stored, in four axes."""
        place = self.bound.bindings.where(tensor)
        array = array_view(tensor, place.buffer.memory, place.offset)
        return array.reshape((1,) * (4 - array.ndim) + array.shape)

    def values(self, tensor):
        """The values of a tensor: as they are, or decoded to f32."""
        stored = self.stored(tensor)
        if tensor.dtype is F32 or tensor.dtype.is_integer:
            return stored
        buffer = self.bound.bindings.where(tensor).buffer
        if not (tensor.is_leaf and buffer.usage is BufferUsage.WEIGHTS):
            return self.decode(tensor, stored)
        if "decoded weights are kept" in self.faults:
            return self.decoded.setdefault(tensor, (0, self.decode(tensor, stored)))[1]
        writes, kept = self.decoded.get(tensor, (-1, None))
        if writes != buffer.writes:
            kept = self.decode(tensor, stored)
            self.decoded[tensor] = buffer.writes, kept
        return kept

    def decode(self, tensor, stored):
        found = blocks.decode(np.ascontiguousarray(stored), tensor.dtype, tensor.ne[::-1])
        if "weights in bf16" in self.faults:
            bits = found.view(np.uint32) & np.uint32(0xFFFF0000)
            found = bits.view(np.float32)
        return found

    def operand(self, node, i):
        """The values of a source; None where it is absent."""
        tensor = node.operands[i]
        if tensor is None:
            return None
        if (node.op, i) in ANGLES_AND_MASKS and "angles and masks of the first run" in self.faults:
            return self.first.setdefault((node, i), self.values(tensor).copy())
        return self.values(tensor)

    # --- work ------------------------------------------------------------------------------

    def compute(self, node, out):
        clamped = "ids are clamped" in self.faults
        raw = "errors of ids are raw" in self.faults
        sources = [self.operand(node, i) for i in range(len(node.operands))]
        if node.writes:
            self.bound.bindings.where(node).buffer.writes += 1
        if node.op == "set_rows":
            kernels.set_rows(out, *sources[1:], raw=raw)
            return
        if node.op == "get_rows":
            result = kernels.get_rows(node.params, *sources, clamped=clamped, raw=raw)
        elif node.op == "mul_mat":
            modulo = "batches repeat modulo" in self.faults
            result = kernels.mul_mat(node.params, *sources, modulo=modulo)
        elif node.op == "rope":
            over = "rope turns its source" in self.faults
            turn = kernels.angles(node.params, sources[1])
            result = kernels.rope(node.params, sources[0], turn, over_source=over)
        else:
            result = kernels.SIMPLE[node.op](node.params, *sources)
        place = self.bound.bindings.where(node)
        if self.backend.scratch.size < place.buffer.size:
            self.backend.scratch = np.ones(place.buffer.size, np.uint8)
        out[...] = result.reshape(out.shape)
