"""Functions of the user, called with what is stored: float64 where a device would have f32."""

import numpy as np

from tensorplug.device import Tensor
from tensorplug.ops.custom import CALLING, call_function
from tensorplug_cpu.reference.memory import Memory
from tensorplug_cpu.reference.table import moves


def called(node: Tensor, memory: Memory) -> None:
    """Let the function of the node fill a fresh array, part after part."""
    sources = [memory.window(t) for t in node.sources]
    window = memory.window(node)
    result = np.zeros(window.shape, window.dtype)
    count = node.params["n_tasks"]
    assert isinstance(count, int)
    nth = 1 if count < 0 else count
    if not nth:
        call_function(node, result, sources)
    for ith in range(nth):
        call_function(node, result, sources, ith=ith, nth=nth)
    window[...] = result


for _op in sorted(CALLING):
    moves(_op)(called)
