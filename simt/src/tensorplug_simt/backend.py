"""`SimtBackend`: what streams of devices whose work is lowered have in common."""

from abc import abstractmethod
from collections.abc import Sequence

from tensorplug.device import Backend, Bindings, DeviceType, Group, Tensor
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.merging import Placed
from tensorplug_simt.placing import place


class SimtBackend(Backend):
    """A stream that queues launches: those of a node and of a group alike."""

    device: SimtDevice

    def __init__(self, device: SimtDevice) -> None:
        super().__init__(device)
        self.prefers_f16 = device.type is not DeviceType.CPU

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        self._launch(node, place(self.device, node, bindings))

    def _compute_group(self, group: Group, bindings: Bindings) -> None:
        self._launch(group, place(self.device, group, bindings))

    @abstractmethod
    def _launch(self, work: Tensor | Group, placed: Sequence[Placed]) -> None:
        """Queue the launches of `work`, each on its own."""
