"""Products with few columns, with what follows: a scale, a bias, a second product as the gate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tensorplug.device import Group, Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.families.elements import TEXT as ELEMENTWISE
from tensorplug_simt.families.gates import ACTIVATIONS
from tensorplug_simt.families.product import REPEATS, need_product
from tensorplug_simt.lowering import GroupLowering, NoKernel, need_type, number
from tensorplug_simt.own.chains import CHAINS
from tensorplug_simt.program import Kernel, Number

PLAIN = ("w", "x", "ids", "y")
FUSED = ("w", "x", "ids", "bias", "w2", "bias2", "y")
SCALED = (*FUSED[:-1], "scale", "scale2", "y")
"""Buffers of kernels without and with what follows a product; few have scales."""
FOLLOWED = tuple(f"mul_mat{id_}_{after}" for id_ in ("", "_id") for after in ("add", "scale"))
GATED = tuple(f"mul_mat{id_}{scale}_glu" for id_ in ("", "_id") for scale in ("", "_scale"))
"""Patterns that `followed` and `gated` are for."""
TEXT = "tensorplug_simt:kernels/few.k"
"""A part of kernels for few columns: scales, biases and gates after a sum."""
_LIMITS = (("alpha", "float"), ("limit", "float"))
_OF_A_PAIR = {"scale": "gate_scale", "scale2": "up_scale", "bias": "gate_bias", "bias2": "up_bias"}
"""Names in groups by buffers."""


def groups(follow: GroupLowering, gate: GroupLowering) -> dict[str, GroupLowering]:
    """A backend's lowerings of groups with a product of few columns, and `CHAINS`."""
    return {**CHAINS, **dict.fromkeys(FOLLOWED, follow), **dict.fromkeys(GATED, gate)}


@dataclass(frozen=True, slots=True)
class Few:
    """A product, and `y`, the result of its group; `more` are the further regions of the kernel.

    `defines` say how a gate is activated.
    """

    product: Tensor
    y: Tensor
    more: Mapping[str, Tensor]
    defines: Mapping[str, int | str]

    @property
    def numbers(self) -> dict[str, Number]:
        """The numbers of a fused kernel in addition to REPEATS."""
        oai = "OAI" in self.defines
        return {name: number(self.y, name) if oai else 0.0 for name, _ in _LIMITS}


class FewKernels(NamedTuple):
    """The same section of a text for all that may follow a product."""

    plain: Kernel
    fused: Kernel
    scaled: Kernel

    def of(self, made: Few) -> Kernel:
        """The one with the smallest block of parameters: several products in one launch need it."""
        if "scale" in made.more:
            return self.scaled
        return self.fused if made.more else self.plain


def kernels(name: str, text: str, *parts: str) -> FewKernels:
    """The section `name` of `text`, without and with what follows a product."""
    fused = (ELEMENTWISE, TEXT, *parts)
    numbers = (*REPEATS, *_LIMITS)
    return FewKernels(
        Kernel(name, text, PLAIN, ("y",), REPEATS, (TEXT, *parts)),
        Kernel(name, text, FUSED, ("y",), numbers, fused),
        Kernel(name, text, SCALED, ("y",), numbers, fused),
    )


def unfused(node: Tensor) -> Few:
    """A product that nothing follows."""
    return Few(node, node, {}, {})


def followed(group: Group) -> Few:
    """A product with a scale, a bias, or both, for all or for each expert. Raises NoKernel."""
    product = group["product"]
    need_product(product)
    return Few(product, group.last, _floats(group, {"scale": "scale", "bias": "bias"}), {})


def gated(group: Group) -> Few:
    """Two products of the same columns, one activated, times each other. Raises NoKernel."""
    gate, up, y = group["gate"], group["up"], group.last
    w, w2 = group["w_gate"], group["w_up"]
    need_product(gate)
    if (w.dtype, w.ne) != (w2.dtype, w2.ne) or gate.ne != up.ne or up.ne != y.ne:
        raise NoKernel(f"no kernel for the pair of weights {w} and {w2}")
    regions = {"w2": w2} | _floats(group, _OF_A_PAIR)
    return Few(gate, y, regions, {"OAI": 1} if y.op == "swiglu_oai" else _activation(y))


def _activation(y: Tensor) -> dict[str, int | str]:
    return {"FUNCTION": ACTIVATIONS[y.op]}


def _floats(group: Group, names: Mapping[str, str]) -> dict[str, Tensor]:
    """What of `names` the group has, for the buffers after which they are."""
    found = {buffer: group[name] for buffer, name in names.items() if name in group}
    for tensor in found.values():
        need_type(tensor, frozenset({F32}))
    return found
