"""Functions of one element."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

import math
from collections.abc import Callable

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference.table import Params, values


def relu(x: Array) -> Array:
    """The positive part."""
    return np.maximum(x, 0)


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """`x` times its logistic function."""
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The Gaussian error linear unit, approximated with tanh."""
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_quick(x: Array) -> Array:
    """The Gaussian error linear unit, approximated with the logistic function."""
    return x / (1 + np.exp(-1.702 * x))


def gelu_erf(x: Array) -> Array:
    """The Gaussian error linear unit itself."""
    # The complement keeps its digits where 1 + erf would cancel.
    return x / 2 * _erfc(-x / math.sqrt(2))


def _erfc(x: Array) -> Array:
    return np.array([math.erfc(each) for each in x.flat]).reshape(x.shape)


def away_from_zero(x: Array) -> Array:
    """The nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sqr": np.square,
    "sqrt": np.sqrt,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "sgn": np.sign,
    "neg": np.negative,
    "step": lambda x: np.where(x > 0, 1.0, 0.0),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "relu": relu,
    "sigmoid": sigmoid,
    "gelu": gelu,
    "gelu_quick": gelu_quick,
    "gelu_erf": gelu_erf,
    "silu": silu,
    "hardswish": lambda x: x * np.clip((x + 3) / 6, 0, 1),
    "hardsigmoid": lambda x: np.clip((x + 3) / 6, 0, 1),
    "exp": np.exp,
    "expm1": np.expm1,
    "softplus": lambda x: np.where(x > 20, x, np.log1p(np.exp(x))),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": away_from_zero,
    "trunc": np.trunc,
}


def _enter(name: str, function: Callable[[Array], Array]) -> None:
    values(name)(lambda _, x: function(x))


for _name, _each in FUNCTIONS.items():
    _enter(_name, _each)


@values("xielu")
def xielu(p: Params, x: Array) -> Array:
    positive = p["alpha_p"] * x**2 + p["beta"] * x
    negative = (np.expm1(np.minimum(x, p["eps"])) - x) * p["alpha_n"] + p["beta"] * x
    return np.where(x > 0, positive, negative)
