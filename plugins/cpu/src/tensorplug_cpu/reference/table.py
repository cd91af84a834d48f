"""The table of reference functions: one for each op that computes."""

from collections.abc import Callable, Mapping
from typing import Any

from tensorplug.device import Array, Tensor, Unsupported
from tensorplug.ops.table import OPS
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
        REFERENCE[op] = _acting(function)
        return function

    return enter


def _acting(function: Function) -> Action:
    def act(node: Tensor, memory: Memory) -> None:
        operands = [None if t is None else memory.value(t) for t in node.operands]
        memory.store(node, function(node.params, *operands))

    return act


def action(op: str) -> Action:
    """What computing `op` does: by the table, or by what its own distribution gave for it.

    Raises Unsupported.
    """
    known = REFERENCE.get(op)
    if known is not None:
        return known
    given = OPS[op].reference if op in OPS else None
    if given is None:
        raise Unsupported(f"reference: no function for op {op!r}; its register_op() gives none")
    return _acting(given)


def moves(op: str) -> Callable[[Action], Action]:
    """Enter a function that works on what is stored, because values do not say enough."""

    def enter(action: Action) -> Action:
        REFERENCE[op] = action
        return action

    return enter
