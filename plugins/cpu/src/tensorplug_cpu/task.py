"""The table of kernels, and what a kernel is given.

A kernel is a function that prepares one node: it gets a `Task`, looks at arrays, sizes and
parameters once, and returns steps that take no arguments. A plan runs them as often as it likes.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tensorplug.device import Array, GraphError, Tensor
from tensorplug.ops import OPS
from tensorplug_cpu.memory import ALIGNMENT, aligned
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.threads import Step, Team


class Scratch:
    """Temporary memory of a plan. Nodes run one after another, so all of them share it."""

    def __init__(self) -> None:
        self._block = aligned(0)
        self._used = 0

    @property
    def size(self) -> int:
        """Bytes that are held for the nodes to come."""
        return self._block.size

    def begin(self) -> None:
        """Start a node: what earlier nodes took may be taken again."""
        self._used = 0

    def array(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Return an uninitialised array that no other array of this node overlaps."""
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        if self._used + size > self._block.size:
            # Arrays handed out keep the old block alive; from now on nodes take from the new one.
            self._block = aligned(max(size, 2 * self._block.size, 1 << 16))
            self._used = 0
        start, self._used = self._used, self._used + -(-size // ALIGNMENT) * ALIGNMENT
        array: Array = self._block[start : start + size].view(kind).reshape(shape)
        return array


@dataclass(slots=True)
class Tools:
    """What the nodes of one plan share."""

    workers: Team
    scratch: Scratch = field(default_factory=Scratch)
    shared: dict[Hashable, Any] = field(default_factory=dict)
    writes: dict[Tensor, int] = field(default_factory=dict)

    def version(self, tensor: Tensor) -> tuple[Tensor, int]:
        """A key for the present contents of `tensor`: itself and the writes to its root so far."""
        return tensor, self.writes.get(tensor.root, 0)


@dataclass(frozen=True, slots=True)
class Task:
    """One node made ready for a kernel."""

    node: Tensor
    out: Operand
    operands: tuple[Operand | None, ...]
    tools: Tools

    def __getitem__(self, name: str) -> Operand:
        found = self.get(name)
        if found is None:
            raise GraphError(f"{self.node}: source {name!r} is missing")
        return found

    def get(self, name: str) -> Operand | None:
        """The source called `name`, or None where it is absent."""
        return self.operands[OPS[self.node.op].positions[name]]

    def source(self, name: str) -> Tensor:
        """The metadata of the source called `name`, which must be there."""
        found = self.node.operands[OPS[self.node.op].positions[name]]
        if found is None:
            raise GraphError(f"{self.node}: source {name!r} is missing")
        return found

    def number(self, name: str) -> float:
        """The numeric parameter `name`."""
        value = self.node.params[name]
        assert isinstance(value, int | float)
        return value

    def integer(self, name: str) -> int:
        """The integer parameter `name`."""
        value = self.node.params[name]
        assert isinstance(value, int)
        return value

    def scratch(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Temporary memory for the steps of this node."""
        return self.tools.scratch.array(shape, dtype)


Kernel = Callable[[Task], Sequence[Step]]
KERNELS: dict[str, Kernel] = {}
"""Kernels by op name. Filled by `kernel`."""


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a kernel for ops; other distributions may add kernels for ops of their own."""

    def register(function: Kernel) -> Kernel:
        for name in names:
            if name in KERNELS:
                raise GraphError(f"kernel: {name!r} has a kernel already")
            KERNELS[name] = function
        return function

    return register
