"""From a use of one of our ops to the builder of ggml that means the same.

A builder gets the library and a `Use`: the sources as pointers to ggml tensors (0 where an optional
one is absent), our parameters by name, and sizes and strides of our node and of its sources.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.ggml import Ggml, Refused, counts


@dataclass(frozen=True, slots=True)
class Use:
    """One use of one op."""

    op: str
    node: dict[str, Any]
    sources: list[int]
    """Pointers to tensors of ggml."""
    seen: list[dict[str, Any] | None]
    """What the sources are: `type`, `ne`, `nb`, `unit` (bytes of a block)."""
    params: dict[str, Any]


Builder = Callable[[Ggml, Use], int]
BUILDERS: dict[str, Builder] = {}


def _direct(op: str, function: str, arguments: str = "") -> None:
    """Take the sources of `op` in order, then parameters: `f eps, i groups`."""
    words = [argument.split() for argument in arguments.split(",") if argument]
    kinds = "".join(kind for kind, _ in words)
    names = [name for _, name in words]

    def build(ggml: Ggml, use: Use) -> int:
        params = [use.params[name] for name in names]
        return ggml.build(function, "t" * len(use.sources) + kinds, *use.sources, *params)

    BUILDERS[op] = build


def _builds(op: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        BUILDERS[op] = build
        return build

    return register


_NAMESAKES = """
    add sub mul div add_id sqr sqrt log sin cos abs sgn neg step tanh elu relu sigmoid gelu
    gelu_quick gelu_erf silu hardswish hardsigmoid exp expm1 softplus floor ceil round trunc
    sum sum_rows mean cumsum argmax mul_mat_id get_rows set_rows cpy transpose
"""
for _name in _NAMESAKES.split():
    _direct(_name, f"ggml_{_name}")

_direct("scale", "ggml_scale_bias", "f scale, f bias")
_direct("clamp", "ggml_clamp", "f min, f max")
_direct("fill", "ggml_fill", "f value")
_direct("arange", "ggml_arange", "f start, f stop, f step")
_direct("norm", "ggml_norm", "f eps")
_direct("rms_norm", "ggml_rms_norm", "f eps")
_direct("l2_norm", "ggml_l2_norm", "f eps")
_direct("group_norm", "ggml_group_norm", "i groups, f eps")
_direct("diag_mask_inf", "ggml_diag_mask_inf", "i n_past")
_direct("argsort", "ggml_argsort", "i descending")
_direct("top_k", "ggml_top_k", "i k")
_direct("concat", "ggml_concat", "i dim")
_direct("acc", "ggml_acc", "z nb1, z nb2, z nb3, z offset")
_direct("set", "ggml_set", "z nb1, z nb2, z nb3, z offset")


# --- views -------------------------------------------------------------------------------------


@_builds("view")
def _view(ggml: Ggml, use: Use) -> int:
    x, node = use.seen[0], use.node
    assert x is not None
    if (x["ne"], x["nb"], use.params["offset"]) == (node["ne"], node["nb"], 0):
        return use.sources[0]  # another rank, which ggml does not have
    if node["ne"][0] > 1 and node["nb"][0] != node["unit"]:
        raise Refused("ggml_view_4d has no stride for dimension 0")
    return _window(ggml, use.sources[0], node["ne"], node["nb"], use.params["offset"])


def _window(ggml: Ggml, x: int, ne: tuple[int, ...], nb: tuple[int, ...], offset: int) -> int:
    return ggml.build("ggml_view_4d", "tllllzzzz", x, *ne, *nb[1:], offset)


@_builds("permute")
def _permute(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_permute", "tiiii", *use.sources, *use.params["axes"])


@_builds("reshape")
def _reshape(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_reshape_4d", "tllll", *use.sources, *use.params["ne"])


# --- elementwise -------------------------------------------------------------------------------


@_builds("leaky_relu")
def _leaky_relu(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_leaky_relu", "tfb", *use.sources, use.params["slope"], False)


@_builds("xielu")
def _xielu(ggml: Ggml, use: Use) -> int:
    """The builder of ggml constrains the alphas, ours takes them constrained: undo it."""
    alpha_n, alpha_p, beta, eps = (use.params[k] for k in ("alpha_n", "alpha_p", "beta", "eps"))
    if alpha_n <= beta or alpha_p <= 0:
        raise Refused("no parameters of ggml_xielu give these alphas")
    free = math.log(math.expm1(alpha_n - beta)), math.log(math.expm1(alpha_p))
    return ggml.build("ggml_xielu", "tffff", *use.sources, *free, beta, eps)


def _glu(ggml: Ggml, use: Use) -> int:
    x, gate = use.sources
    if gate:
        return ggml.build(f"ggml_{use.op}_split", "tt", x, gate)
    return ggml.build(f"ggml_{use.op}" + "_swapped" * use.params["swapped"], "t", x)


for _name in ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"):
    BUILDERS[_name] = _glu


@_builds("swiglu_oai")
def _swiglu_oai(ggml: Ggml, use: Use) -> int:
    x, gate = use.sources
    if not gate:
        halves = [_half(ggml, use, second) for second in (False, True)]
        x, gate = reversed(halves) if use.params["swapped"] else halves
    return ggml.build("ggml_swiglu_oai", "ttff", x, gate, use.params["alpha"], use.params["limit"])


def _half(ggml: Ggml, use: Use, second: bool) -> int:
    """One half of each row: the public builder takes both apart."""
    x, ne = use.seen[0], use.node["ne"]
    assert x is not None
    if x["nb"][0] != x["unit"]:
        raise Refused("ggml_view_4d has no stride for dimension 0")
    return _window(ggml, use.sources[0], ne, x["nb"], second * ne[0] * x["unit"])


# --- rows, copies ------------------------------------------------------------------------------


@_builds("dup")
def _dup(ggml: Ggml, use: Use) -> int:
    x = use.seen[0]
    assert x is not None
    if x["type"] == use.node["type"]:
        return ggml.build("ggml_dup", "t", *use.sources)
    return ggml.build("ggml_cast", "ti", *use.sources, use.node["type"])


@_builds("cont")
def _cont(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_cont_4d", "tllll", *use.sources, *use.node["ne"])


@_builds("repeat")
def _repeat(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_repeat_4d", "tllll", *use.sources, *use.node["ne"])


# --- products, attention -----------------------------------------------------------------------


@_builds("mul_mat")
def _mul_mat(ggml: Ggml, use: Use) -> int:
    if use.params["precision"] != "default":
        raise Refused("precisions of ggml are others")
    return ggml.build("ggml_mul_mat", "tt", *use.sources)


@_builds("soft_max")
def _soft_max(ggml: Ggml, use: Use) -> int:
    x, mask, sinks = use.sources
    numbers = use.params["scale"], use.params["max_bias"]
    node = ggml.build("ggml_soft_max_ext", "ttff", x, mask, *numbers)
    if sinks:
        ggml.typed("ggml_soft_max_add_sinks", "-tt")(node, sinks)
    return node


@_builds("flash_attn_ext")
def _flash_attn_ext(ggml: Ggml, use: Use) -> int:
    *operands, sinks = use.sources
    numbers = [use.params[name] for name in ("scale", "max_bias", "softcap")]
    node = ggml.build("ggml_flash_attn_ext", "ttttfff", *operands, *numbers)
    if sinks:
        ggml.typed("ggml_flash_attn_ext_add_sinks", "-tt")(node, sinks)
    return node


# --- rope --------------------------------------------------------------------------------------

ROPE_MODES = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
"""`GGML_ROPE_TYPE_*`."""


@_builds("rope")
def _rope(ggml: Ggml, use: Use) -> int:
    params, mode = use.params, ROPE_MODES[use.params["mode"]]
    names = ("base", "scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
    numbers = [params[name] for name in names]
    context = params["original_context"]
    if mode < ROPE_MODES["mrope"]:
        ints = (params["dims"], mode, context)
        return ggml.build("ggml_rope_ext", "tttiiiffffff", *use.sources, *ints, *numbers)
    sections = counts([*params["sections"], 0, 0, 0][:4])
    ints = (params["dims"], sections, mode, context)
    return ggml.build("ggml_rope_multi", "tttitiiffffff", *use.sources, *ints, *numbers)
