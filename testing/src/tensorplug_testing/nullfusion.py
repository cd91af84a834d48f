"""How a fake device computes a group: in scratch memory, after the outputs' memory is spoilt."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from tensorplug.fusion.formulas import Group
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Tensor

SPOILT = 0xFF
"""A byte that makes NaNs of floats and -1 of integers."""


class Computer(Protocol):
    """What this needs of a device."""

    def compute(
        self, node: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array] | None = None
    ) -> None:
        """Do one node; roots in `scratch` lie there."""
        ...

    def array(self, tensor: Tensor, bindings: Bindings, scratch: Mapping[Tensor, Array]) -> Array:
        """The elements of `tensor`."""
        ...


def compute_group(device: Computer, group: Group, bindings: Bindings) -> None:
    """Compute the nodes of `group` in private memory; then store the outputs.

    A kernel may write any part of an output before it reads any part of an input, unless the
    pattern says that it does not. Spoiling the outputs first shows whose memory they share.
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
