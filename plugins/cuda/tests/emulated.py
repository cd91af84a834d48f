"""The kernels of this backend on the emulator, which declares their roundings."""

from tensorplug.device import Rounding, Tensor
from tensorplug_cuda.kernels.roundings import declared
from tensorplug_emulator.device import EmulatedDevice


class EmulatedGpu(EmulatedDevice):
    """An emulated device that rounds as CUDA devices do."""

    def _rounding(self, node: Tensor) -> Rounding:
        return declared(node, self.facts)
