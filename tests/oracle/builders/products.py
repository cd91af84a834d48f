"""Matrix products, softmax, attention, rope."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml, Refused, counts

HINTS = {"hadamard": 1}
"""`GGML_HINT_*`."""

direct("mul_mat_id")
direct("out_prod")


@builds("mul_mat")
def _mul_mat(ggml: Ggml, use: Use) -> int:
    if use.params["precision"] != "default":
        raise Refused("precisions of ggml are others")
    node = ggml.build("ggml_mul_mat", "tt", *use.sources)
    if hint := use.params["hint"]:
        ggml.typed("ggml_mul_mat_set_hint", "-ti")(node, HINTS[hint])
    return node


@builds("soft_max")
def _soft_max(ggml: Ggml, use: Use) -> int:
    x, mask, sinks = use.sources
    numbers = use.params["scale"], use.params["max_bias"]
    node = ggml.build("ggml_soft_max_ext", "ttff", x, mask, *numbers)
    if sinks:
        ggml.typed("ggml_soft_max_add_sinks", "-tt")(node, sinks)
    return node


@builds("flash_attn_ext")
def _flash_attn_ext(ggml: Ggml, use: Use) -> int:
    *operands, sinks = use.sources
    numbers = [use.params[name] for name in ("scale", "max_bias", "softcap")]
    node = ggml.build("ggml_flash_attn_ext", "ttttfff", *operands, *numbers)
    if sinks:
        ggml.typed("ggml_flash_attn_ext_add_sinks", "-tt")(node, sinks)
    return node


ROPE_MODES = {"normal": 0, "neox": 2, "mrope": 8, "vision": 24, "imrope": 40}
"""`GGML_ROPE_TYPE_*`."""


@builds("rope")
def _rope(ggml: Ggml, use: Use) -> int:
    return _turned(ggml, use, "")


@builds("rope_back")
def _rope_back(ggml: Ggml, use: Use) -> int:
    return _turned(ggml, use, "_back")


def _turned(ggml: Ggml, use: Use, way: str) -> int:
    params, mode = use.params, ROPE_MODES[use.params["mode"]]
    names = ("base", "scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
    numbers = [params[name] for name in names]
    context = params["original_context"]
    if mode < ROPE_MODES["mrope"]:
        ints = (params["dims"], mode, context)
        node = ggml.build(f"ggml_rope_ext{way}", "tttiiiffffff", *use.sources, *ints, *numbers)
    else:
        sections = counts([*params["sections"], 0, 0, 0][:4])
        ints = (params["dims"], sections, mode, context)
        node = ggml.build(f"ggml_rope_multi{way}", "tttitiiffffff", *use.sources, *ints, *numbers)
    if offset := params["offset"]:
        ggml.typed("ggml_rope_set_offset", "tti")(node, offset)
    return node
