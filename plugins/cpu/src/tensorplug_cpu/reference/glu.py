"""Gated linear units: an activated half times a plain half."""

# NumPy types most of what its functions return as Any.
# mypy: no-warn-return-any

from collections.abc import Callable

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.reference import unary
from tensorplug_cpu.reference.table import Params, values

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "reglu": unary.relu,
    "geglu": unary.gelu,
    "swiglu": unary.silu,
    "geglu_erf": unary.gelu_erf,
    "geglu_quick": unary.gelu_quick,
}


def halves(p: Params, x: Array, gate: Array | None) -> tuple[Array, Array]:
    """The half that is activated and the half that is plain."""
    if gate is not None:
        return x, gate
    first, second = np.split(x, 2, axis=-1)
    return (second, first) if p["swapped"] else (first, second)


def _enter(name: str, activation: Callable[[Array], Array]) -> None:
    @values(name)
    def unit(p: Params, x: Array, gate: Array | None) -> Array:
        activated, plain = halves(p, x, gate)
        return activation(activated) * plain


for _name, _activation in ACTIVATIONS.items():
    _enter(_name, _activation)


@values("swiglu_oai")
def swiglu_oai(p: Params, x: Array, gate: Array | None) -> Array:
    activated, plain = halves(p, x, gate)
    a = np.minimum(activated, p["limit"])
    b = np.clip(plain, -p["limit"], p["limit"])
    return a / (1 + np.exp(-p["alpha"] * a)) * (b + 1)
