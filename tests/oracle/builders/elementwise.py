"""Element by element, row by row."""

import math

from oracle.builders.table import BUILDERS, Use, builds, direct
from oracle.builders.views import window
from oracle.ggml import Ggml, Refused

_NAMESAKES = """
    sub mul div add1 add_id sqr sqrt log sin cos abs sgn neg step tanh elu relu sigmoid gelu
    gelu_quick gelu_erf silu hardswish hardsigmoid exp expm1 softplus floor ceil round trunc
    sum sum_rows mean cumsum argmax count_equal
"""
for _name in _NAMESAKES.split():
    direct(_name)

direct("scale", "ggml_scale_bias", "f scale, f bias")
direct("clamp", arguments="f min, f max")
direct("fill", arguments="f value")
direct("arange", arguments="f start, f stop, f step")
direct("norm", arguments="f eps")
direct("rms_norm", arguments="f eps")
direct("l2_norm", arguments="f eps")
direct("group_norm", arguments="i groups, f eps")
direct("argsort", arguments="i descending")
direct("top_k", arguments="i k")


@builds("add")
def _add(ggml: Ggml, use: Use) -> int:
    a = use.seen[0]
    assert a is not None
    if a["type"] == use.node["type"]:
        return ggml.build("ggml_add", "tt", *use.sources)
    return ggml.build("ggml_add_cast", "tti", *use.sources, use.node["type"])


@builds("leaky_relu")
def _leaky_relu(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_leaky_relu", "tfb", *use.sources, use.params["slope"], False)


@builds("xielu")
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


@builds("swiglu_oai")
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
    return window(ggml, use.sources[0], ne, x["nb"], second * ne[0] * x["unit"])
