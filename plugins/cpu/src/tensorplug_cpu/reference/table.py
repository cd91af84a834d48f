"""The table of reference functions: one for each op that computes."""

from collections.abc import Callable, Mapping
from typing import Any

from tensorplug.tensor import Array, Tensor
from tensorplug_cpu.reference.memory import Memory

Params = Mapping[str, Any]
Action = Callable[[Tensor, Memory], None]
Function = Callable[..., Array]
"""From the params of a node and the values of its sources (None where absent) to its values."""

REFERENCE: dict[str, Action] = {}
"""What computing a node does to memory, by op."""


def values(op: str) -> Callable[[Function], Function]:
    """Enter a function from the values of the sources to the values of the result."""

    def enter(function: Function) -> Function:
        def act(node: Tensor, memory: Memory) -> None:
            operands = [None if t is None else memory.value(t) for t in node.operands]
            memory.store(node, function(node.params, *operands))

        REFERENCE[op] = act
        return function

    return enter


def moves(op: str) -> Callable[[Action], Action]:
    """Enter a function that works on what is stored, because values do not say enough."""

    def enter(action: Action) -> Action:
        REFERENCE[op] = action
        return action

    return enter
