"""Recurrences along time, linear attention, sparse attention."""

from oracle.builders.table import direct

_NAMESAKES = "ssm_conv rwkv_wkv6 rwkv_wkv7 dsv4_hc_pre dsv4_hc_post lightning_indexer"
for _name in _NAMESAKES.split():
    direct(_name)

direct("ssm_scan", arguments="l K")
direct("gated_linear_attn", arguments="f scale")
direct("gated_delta_net", arguments="l K")
direct("solve_tri", arguments="b left, b lower, b uni")
direct("dsv4_hc_comb", arguments="f eps, i n_iter")
