"""Products with few columns, with what follows them: a bias, or a second product as its gate."""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorplug.dtypes import F32
from tensorplug.fusion import Group
from tensorplug.tensor import Tensor
from tensorplug_simt.families.elements import TEXT as ELEMENTWISE
from tensorplug_simt.families.gates import ACTIVATIONS
from tensorplug_simt.lowering import NoKernel, need_type, number
from tensorplug_simt.own.product import REPEATS, need_product
from tensorplug_simt.program import Kernel, Number

PLAIN = ("w", "x", "ids", "y")
FUSED = ("w", "x", "ids", "bias", "w2", "bias2", "y")
"""Buffers of kernels without and with what follows a product."""
TEXT = "tensorplug_simt:kernels/few.k"
"""A part of such kernels: what becomes of a sum."""
_LIMITS = (("alpha", "float"), ("limit", "float"))


@dataclass(frozen=True, slots=True)
class Few:
    """A product and its result, which is that of the last node; `more` are places beside its own.

    `defines` say how a gate is activated.
    """

    product: Tensor
    y: Tensor
    more: Mapping[str, Tensor]
    defines: Mapping[str, int | str]

    @property
    def numbers(self) -> dict[str, Number]:
        """Those of a fused kernel beside REPEATS."""
        oai = "OAI" in self.defines
        return {name: number(self.y, name) if oai else 0.0 for name, _ in _LIMITS}


def kernels(name: str, text: str, *parts: str) -> tuple[Kernel, Kernel]:
    """The section `name` of `text`, without and with what follows a product.

    Small blocks of parameters are what several products in one launch need.
    """
    plain = Kernel(name, text, PLAIN, ("y",), REPEATS, (TEXT, *parts))
    fused = (ELEMENTWISE, TEXT, *parts)
    return plain, Kernel(name, text, FUSED, ("y",), (*REPEATS, *_LIMITS), fused)


def alone(node: Tensor) -> Few:
    """A product that nothing follows."""
    return Few(node, node, {}, {})


def biased(group: Group) -> Few:
    """A product, and a bias for its rows or for those of each expert. Raises NoKernel."""
    product = group["product"]
    need_product(product)
    return Few(product, group.last, {"bias": _floats(group["bias"])}, {})


def gated(group: Group) -> Few:
    """Two products of the same columns, one activated, times each other. Raises NoKernel."""
    gate, up, y = group["gate"], group["up"], group.last
    w, w2 = group["w_gate"], group["w_up"]
    need_product(gate)
    if (w.dtype, w.ne) != (w2.dtype, w2.ne) or gate.ne != up.ne or up.ne != y.ne:
        raise NoKernel(f"no kernel for {w} beside {w2}")
    biases = {"bias": group.get("gate_bias"), "bias2": group.get("up_bias")}
    places = {"w2": w2} | {name: _floats(bias) for name, bias in biases.items() if bias is not None}
    return Few(gate, y, places, {"OAI": 1} if y.op == "swiglu_oai" else _activation(y))


def _activation(y: Tensor) -> dict[str, int | str]:
    return {"FUNCTION": ACTIVATIONS[y.op]}


def _floats(bias: Tensor) -> Tensor:
    need_type(bias, frozenset({F32}))
    return bias
