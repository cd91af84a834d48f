"""Groups on fake devices: computed in scratch memory, after the outputs were overwritten."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from tensorplug.device import Array, Bindings, Group, Tensor

SPOILT = 0xFF
"""The byte that overwrites outputs: it makes floats NaN and integers -1."""


class Computer(Protocol):
    """The methods of a device that this module uses."""

    def compute(
        self, node: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array] | None = None
    ) -> None:
        """Compute one node; roots in `scratch` lie in these arrays."""
        ...

    def array(self, tensor: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array]) -> Array:
        """The elements of `tensor`."""
        ...


def compute_group(device: Computer, group: Group, bindings: Bindings) -> None:
    """Compute the nodes of `group` in private memory, then store the outputs.

    Unless the pattern says otherwise, a kernel may write any part of an output before it reads any
    part of an input. Overwriting the outputs first reveals inputs that share their memory.
    """
    scratch = {
        node: np.full(node.nbytes, SPOILT, np.uint8) for node in group.nodes if not node.writes
    }
    stored = [t for t in group.outputs if not t.writes]
    shared = {bindings.where(t) for t in group.replaceable}
    for output in stored:
        if bindings.where(output) not in shared:
            device.array(output, bindings, {}).view(np.uint8)[...] = SPOILT
    for node in group.nodes:
        device.compute(node, bindings, scratch)
    for output in stored:
        device.array(output, bindings, {})[...] = device.array(output, bindings, scratch)
