"""Rows, copies, parts."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml, sizes

F32 = 0
"""`GGML_TYPE_F32`."""

for _name in ("get_rows", "set_rows", "cpy"):
    direct(_name)

direct("concat", arguments="i dim")
direct("diag")
direct("diag_mask_inf", arguments="i n_past")
direct("diag_mask_zero", arguments="i n_past")
direct("acc", arguments="z nb1, z nb2, z nb3, z offset")
direct("set", arguments="z nb1, z nb2, z nb3, z offset")


TRIANGLES = {"upper_diag": 0, "upper": 1, "lower_diag": 2, "lower": 3}
"""`enum ggml_tri_type`."""


@builds("tri")
def _tri(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_tri", "ti", *use.sources, TRIANGLES[use.params["kind"]])


@builds("repeat_back")
def _repeat_back(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_repeat_back", "tt", *use.sources, _shaped(ggml, use))


@builds("get_rows_back")
def _get_rows_back(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_get_rows_back", "ttt", *use.sources, _shaped(ggml, use))


def _shaped(ggml: Ggml, use: Use) -> int:
    """A tensor that stands for the sizes of the result."""
    return ggml.build("ggml_new_tensor", "iit", F32, 4, sizes(use.node["ne"]))


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
