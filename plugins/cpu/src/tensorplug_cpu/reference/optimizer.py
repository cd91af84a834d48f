"""Steps of an optimizer, written over weights and state."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import numpy as np

from tensorplug.device import Tensor
from tensorplug_cpu.reference.memory import Memory
from tensorplug_cpu.reference.table import moves


@moves("opt_step_adamw")
def opt_step_adamw(node: Tensor, memory: Memory) -> None:
    x, grad, m, v = (memory.value(t) for t in node.sources[:4])
    rate, b1, b2, eps, decay, c1, c2 = memory.value(node.sources[4]).reshape(-1)
    m = b1 * m + (1 - b1) * grad
    v = b2 * v + (1 - b2) * grad**2
    x = x * (1 - rate * decay) - rate * (c1 * m) / (np.sqrt(c2 * v) + eps)
    for tensor, values in zip((node, *node.also_writes), (x, m, v), strict=True):
        memory.store(tensor, values)


@moves("opt_step_sgd")
def opt_step_sgd(node: Tensor, memory: Memory) -> None:
    x, grad, settings = (memory.value(t) for t in node.sources)
    rate, decay = settings.reshape(-1)
    memory.store(node, x * (1 - rate * decay) - rate * grad)
