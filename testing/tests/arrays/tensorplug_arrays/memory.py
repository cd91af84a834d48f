"""Memory: arrays of bytes that only this backend sees. A buffer counts what is written to it."""

import numpy as np

from tensorplug.device import Buffer, BufferType


class ArraysBufferType(BufferType):
    def __init__(self, device):
        super().__init__(device)
        self.name = device.name

    def _alloc(self, size, usage):
        return ArraysBuffer(self, size, usage)


class ArraysBuffer(Buffer):
    def __init__(self, kind, size, usage):
        super().__init__(kind, size, usage)
        self.memory = np.empty(size, np.uint8)
        self.writes = 0
        kind.device.used += size

    def _write(self, offset, data):
        self.writes += 1
        self.memory[offset : offset + data.nbytes] = data

    def _read(self, offset, out):
        out[:] = self.memory[offset : offset + out.nbytes].data

    def _fill(self, offset, size, value):
        self.writes += 1
        self.memory[offset : offset + size] = value

    def _copy_from(self, source, start, offset, size):
        if not isinstance(source, ArraysBuffer):
            return False
        self.writes += 1
        if "copies mind no overlap" in self.type.device.faults:
            for i in range(size):
                self.memory[offset + i] = source.memory[start + i]
        else:
            self.memory[offset : offset + size] = source.memory[start : start + size].copy()
        return True

    def _close(self):
        self.type.device.used -= self.size
        if "buffers keep their memory" not in self.type.device.faults:
            self.memory = None
