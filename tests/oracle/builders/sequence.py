"""Recurrences along time, linear attention, sparse attention."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml, Refused

_NAMESAKES = "ssm_conv rwkv_wkv6 rwkv_wkv7 dsv4_hc_post lightning_indexer"
for _name in _NAMESAKES.split():
    direct(_name)

direct("ssm_scan", arguments="l K")
direct("gated_linear_attn", arguments="f scale")
direct("gated_delta_net", arguments="l K")
direct("dsv4_hc_comb", arguments="f eps, i n_iter")


@builds("solve_tri")
def _solve_tri(ggml: Ggml, use: Use) -> int:
    left, lower, unit = True, True, False  # ggml knows no others
    return ggml.build("ggml_solve_tri", "ttbbb", *use.sources, left, lower, unit)


@builds("dsv4_hc_pre")
def _dsv4_hc_pre(ggml: Ggml, use: Use) -> int:
    scale = use.params["scale"]
    if use.params["gated"]:
        return ggml.build("ggml_dsv4_hc_pre_gated", "ttf", *use.sources, scale)
    if scale != 1:
        raise Refused("ggml_dsv4_hc_pre takes no scale")
    return ggml.build("ggml_dsv4_hc_pre", "tt", *use.sources)
