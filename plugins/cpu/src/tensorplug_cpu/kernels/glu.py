"""Gated linear units: an activated half times a plain half."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.kernels.unary import FUNCTIONS
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled

_ACTIVATIONS = {
    "reglu": "relu",
    "geglu": "gelu",
    "swiglu": "silu",
    "geglu_erf": "gelu_erf",
    "geglu_quick": "gelu_quick",
}


def _halves(task: Task) -> list[Operand]:
    """The activated and the plain side, from two sources or from the halves of one."""
    x, gate = task["x"], task.get("gate")
    if gate is not None:
        return [x, gate]
    half = x.array.shape[-1] // 2
    sides = [Operand(x.array[..., :half], x.dtype), Operand(x.array[..., half:], x.dtype)]
    return sides[::-1] if task.node.params["swapped"] else sides


@kernel(*_ACTIVATIONS)
def glu(task: Task) -> Sequence[Step]:
    """`activation(x) * gate`."""
    activation = FUNCTIONS[_ACTIVATIONS[task.node.op]]

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        x, gate = sources
        active = scratch(x.shape)
        return [*activation(x, active, scratch), partial(np.multiply, active, gate, out)]

    return tiled(task, tile, _halves(task))


@kernel("swiglu_oai")
def swiglu_oai(task: Task) -> Sequence[Step]:
    """Clamped `swiglu` with `gate + 1`."""
    alpha, limit = np.float32(task.number("alpha")), np.float32(task.number("limit"))

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        x, gate = sources
        a, b = scratch(x.shape), scratch(x.shape)
        return [
            partial(np.minimum, x, limit, out=a),
            partial(np.multiply, a, -alpha, b),
            partial(np.exp, b, b),
            partial(np.add, b, np.float32(1), b),
            partial(np.divide, a, b, a),
            partial(np.minimum, gate, limit, out=b),
            partial(np.maximum, b, -limit, out=b),
            partial(np.add, b, np.float32(1), b),
            partial(np.multiply, a, b, out),
        ]

    return tiled(task, tile, _halves(task))
