"""Functions of one element. Results may lie over the source."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.kernels.erf import erfc_steps
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries, tiled

Function = Callable[[Array, Array, Temporaries], Sequence[Step]]
"""Steps that write f(x) into out, both f32, perhaps the same memory."""

_ONE = np.float32(1)
_HALF = np.float32(0.5)


def _logistic(slope: float) -> Function:
    """`x / (1 + exp(-slope * x))`."""
    factor = np.float32(-slope)

    def steps(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
        divisor = scratch(x.shape)
        return [
            partial(np.multiply, x, factor, divisor),
            partial(np.exp, divisor, divisor),
            partial(np.add, divisor, _ONE, divisor),
            partial(np.divide, x, divisor, out),
        ]

    return steps


def _sigmoid(x: Array, out: Array, _: Temporaries) -> Sequence[Step]:
    return [
        partial(np.negative, x, out),
        partial(np.exp, out, out),
        partial(np.add, out, _ONE, out),
        partial(np.reciprocal, out, out),
    ]


def _gelu(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), which keeps its digits where tanh(u) nears -1.
    factor = -2 * math.sqrt(2 / math.pi)
    t = scratch(x.shape)
    return [
        partial(np.multiply, x, x, t),
        partial(np.multiply, t, np.float32(0.044715 * factor), t),
        partial(np.add, t, np.float32(factor), t),
        partial(np.multiply, t, x, t),
        partial(np.exp, t, t),
        partial(np.add, t, _ONE, t),
        partial(np.divide, x, t, out),
    ]


def _gelu_erf(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    # 1 + erf(x / sqrt 2) is erfc(z) for negative x and 2 - erfc(z) for others, z = |x| / sqrt 2.
    z, tail, positive = scratch(x.shape), scratch(x.shape), scratch(x.shape, np.bool_)
    return [
        partial(np.greater, x, 0, positive),
        partial(np.abs, x, z),
        partial(np.multiply, z, np.float32(math.sqrt(0.5)), z),
        *erfc_steps(z, tail, scratch),
        partial(np.subtract, np.float32(2), tail, tail, where=positive),
        partial(np.multiply, tail, _HALF, tail),
        partial(np.multiply, tail, x, out),
    ]


def _elu(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    below, positive = scratch(x.shape), scratch(x.shape, np.bool_)
    return [
        partial(np.greater, x, 0, positive),
        partial(np.expm1, x, below),
        partial(np.copyto, below, x, where=positive),
        partial(np.copyto, out, below),
    ]


def _hardsigmoid(x: Array, out: Array, _: Temporaries) -> Sequence[Step]:
    return [
        partial(np.add, x, np.float32(3), out),
        partial(np.divide, out, np.float32(6), out),
        partial(np.maximum, out, np.float32(0), out=out),
        partial(np.minimum, out, _ONE, out=out),
    ]


def _hardswish(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    gate = scratch(x.shape)
    return [*_hardsigmoid(x, gate, scratch), partial(np.multiply, x, gate, out)]


def _softplus(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    small, large = scratch(x.shape), scratch(x.shape, np.bool_)
    return [
        partial(np.greater, x, np.float32(20), large),
        partial(np.exp, x, small),
        partial(np.log1p, small, small),
        partial(np.copyto, small, x, where=large),
        partial(np.copyto, out, small),
    ]


def _round(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    # Halves go away from zero. Adding 0.5 would lift 0.49999997 over the edge; doubling is exact.
    whole, rest, finite = scratch(x.shape), scratch(x.shape), scratch(x.shape, np.bool_)
    return [
        partial(np.trunc, x, whole),
        partial(np.isfinite, x, finite),
        partial(np.subtract, x, whole, rest, where=finite),
        partial(np.multiply, rest, np.float32(2), rest, where=finite),
        partial(np.trunc, rest, rest, where=finite),
        partial(np.add, whole, rest, whole, where=finite),
        partial(np.copyto, out, whole),
    ]


def _step(x: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    positive = scratch(x.shape, np.bool_)
    return [partial(np.greater, x, 0, positive), partial(np.copyto, out, positive)]


def _single(function: Callable[..., Any]) -> Function:
    """A function that NumPy has: one call."""

    def steps(x: Array, out: Array, _: Temporaries) -> Sequence[Step]:
        return [partial(function, x, out=out)]

    return steps


def _relu(x: Array, out: Array, _: Temporaries) -> Sequence[Step]:
    return [partial(np.maximum, x, np.float32(0), out=out)]


FUNCTIONS: dict[str, Function] = {
    "sqr": _single(np.square),
    "sqrt": _single(np.sqrt),
    "log": _single(np.log),
    "sin": _single(np.sin),
    "cos": _single(np.cos),
    "abs": _single(np.abs),
    "sgn": _single(np.sign),
    "neg": _single(np.negative),
    "step": _step,
    "tanh": _single(np.tanh),
    "elu": _elu,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_quick": _logistic(1.702),
    "gelu_erf": _gelu_erf,
    "silu": _logistic(1.0),
    "hardswish": _hardswish,
    "hardsigmoid": _hardsigmoid,
    "exp": _single(np.exp),
    "expm1": _single(np.expm1),
    "softplus": _softplus,
    "floor": _single(np.floor),
    "ceil": _single(np.ceil),
    "round": _round,
    "trunc": _single(np.trunc),
}


@kernel(*FUNCTIONS)
def unary(task: Task) -> Sequence[Step]:
    """One function of each element."""
    function = FUNCTIONS[task.node.op]

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        return function(sources[0], out, scratch)

    return tiled(task, tile, [task["x"]])


@kernel("xielu")
def xielu(task: Task) -> Sequence[Step]:
    """Expanded integral of the exponential linear unit."""
    alpha_n, alpha_p, beta, eps = (
        np.float32(task.number(n)) for n in ("alpha_n", "alpha_p", "beta", "eps")
    )

    def tile(out: Array, sources: Sequence[Array], scratch: Temporaries) -> Sequence[Step]:
        (x,) = sources
        below, above = scratch(x.shape), scratch(x.shape)
        positive = scratch(x.shape, np.bool_)
        return [
            partial(np.greater, x, 0, positive),
            partial(np.minimum, x, eps, out=below),
            partial(np.expm1, below, below),
            partial(np.subtract, below, x, below),
            partial(np.multiply, below, alpha_n, below),
            partial(np.multiply, x, x, above),
            partial(np.multiply, above, alpha_p, above),
            partial(np.copyto, below, above, where=positive),
            partial(np.multiply, x, beta, above),
            partial(np.add, below, above, out),
        ]

    return tiled(task, tile, [task["x"]])
