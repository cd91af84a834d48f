"""Rows, copies, parts."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml

for _name in ("get_rows", "set_rows", "cpy"):
    direct(_name)

direct("concat", arguments="i dim")
direct("acc", arguments="z nb1, z nb2, z nb3, z offset")
direct("set", arguments="z nb1, z nb2, z nb3, z offset")


@builds("dup")
def _dup(ggml: Ggml, use: Use) -> int:
    x = use.seen[0]
    assert x is not None
    if x["type"] == use.node["type"]:
        return ggml.build("ggml_dup", "t", *use.sources)
    return ggml.build("ggml_cast", "ti", *use.sources, use.node["type"])


@builds("cont")
def _cont(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_cont_4d", "tllll", *use.sources, *use.node["ne"])


@builds("repeat")
def _repeat(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_repeat_4d", "tllll", *use.sources, *use.node["ne"])
