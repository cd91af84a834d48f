"""Results that pack the outputs of a recurrence and, behind them, its last states."""

from math import prod

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.task import Task


class Snapshots:
    """The states in a result: slot 0 is the state of now, slot k the one k tokens before the end.

    `shape` is that of one state, all sequences in it.
    """

    def __init__(self, task: Task, shape: tuple[int, ...]) -> None:
        flat = task.out.array.reshape(-1)
        slots = task.integer("K") if "K" in task.node.params else 1
        first = flat.size - slots * prod(shape)
        self.outputs = flat[:first]
        """What lies before the states."""
        self._slots = flat[first:].reshape(slots, *shape)
        self.state: Array = self._slots[0]

    def begin(self, tokens: int) -> None:
        """Clear the slots that so few tokens do not fill. The caller sets `state`."""
        self._slots[max(tokens, 1) :] = 0

    def keep(self, left: int) -> None:
        """Keep the state of now, `left` tokens before the end, if there is a slot for it."""
        if 0 < left < len(self._slots):
            np.copyto(self._slots[left], self.state)
