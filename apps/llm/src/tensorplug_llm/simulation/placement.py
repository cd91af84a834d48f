"""Where the blocks of a model would lie: neighbours together, by speed, within each memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorplug.device import Graph, OutOfMemory, Tensor
from tensorplug.text import human
from tensorplug_llm.simulation.plan import PlannedDevice

_BLOCK = re.compile(r"\d+")


@dataclass
class Block:
    """Persistent tensors that stay together: those with the same number in their names."""

    tensors: list[Tensor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def blocks_of(graph: Graph) -> list[Block]:
    """The blocks in the order in which the graph first uses them.

    A tensor without a number in its name belongs to the block that is used before it, or to the
    first one.
    """
    found: dict[str, Block] = {}
    seen: set[Tensor] = set()
    last = ""
    for node in graph.nodes:
        for source in node.sources:
            root = source.root
            if root.place is None or root in seen:
                continue
            seen.add(root)
            number = _BLOCK.search(root.name)
            last = number.group() if number else last
            found.setdefault(last, Block()).tensors.append(root)
    blocks = list(found.values())
    if "" in found and len(blocks) > 1:  # what comes before the first block goes with it
        first = blocks.pop(0)
        blocks[0].tensors[:0] = first.tensors
    return blocks


def placed(blocks: Sequence[Block], devices: Sequence[PlannedDevice]) -> list[int]:
    """The number of the device of each block. Raises OutOfMemory.

    Devices take blocks in order, each as many bytes as its share of all bandwidth, unless its
    memory is smaller; later devices take what is left over.
    """
    sizes = [block.nbytes for block in blocks]
    found: list[int] = []
    speeds = [device.speed.bandwidth for device in devices]
    for number, device in enumerate(devices):
        left = sum(sizes[len(found) :])
        share = left * speeds[number] / sum(speeds[number:])
        used = 0
        while len(found) < len(sizes):
            size = sizes[len(found)]
            if used + size > device.memory or (used and used + size / 2 > share):
                break
            used += size
            found.append(number)
    if len(found) < len(sizes):
        found = _packed(sizes, devices)
    return found


def _packed(sizes: Sequence[int], devices: Sequence[PlannedDevice]) -> list[int]:
    """Each device is filled before the next."""
    found: list[int] = []
    for number, device in enumerate(devices):
        used = 0
        while len(found) < len(sizes) and used + sizes[len(found)] <= device.memory:
            used += sizes[len(found)]
            found.append(number)
    if len(found) < len(sizes):
        raise OutOfMemory(
            f"the model: {human(sum(sizes))} in {len(sizes)} blocks do not fit into "
            f"{len(devices)} devices with {human(sum(d.memory for d in devices))} in all; "
            f"{len(found)} blocks fit; add devices or memory"
        )
    return found
