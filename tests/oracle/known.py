"""What ggml takes without a check and computes otherwise, with the reason of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensorplug_testing.cases.case import Case

MANY = 16
"""Results from which on the errors of single ones weigh little."""


@dataclass(frozen=True, slots=True)
class Known:
    """A deviation of ggml: for which ops, for which of their cases, why, and until when."""

    ops: str
    applies: Callable[[Case], bool]
    reason: str
    before: tuple[int, ...] = (99,)
    """The first version known to be without it."""


def reason(case: Case, release: tuple[int, ...]) -> str:
    """Why the ggml of a version may differ from all others on a case; empty if it must agree."""
    told = [k for k in KNOWN if case.op in k.ops.split() and release < k.before]
    return next((k.reason for k in told if k.applies(case)), "")


def unasked(case: Case) -> str:
    """Why ggml is not asked about a case; empty where it is."""
    if case.op == "conv_transpose_2d" and case.params.get("s0") != case.params.get("s1"):
        return "ggml has one stride for both dimensions"
    without = any(arg is not None and arg.data.tag.startswith("partly_") for arg in case.args)
    return "ggml stops at ids of no row, or reads and writes elsewhere" if without else ""


def _laid(*layouts: str) -> Callable[[Case], bool]:
    """Some source has one of these layouts."""
    return lambda case: not set(layouts).isdisjoint(case.layouts)


def _filled(values: str) -> Callable[[Case], bool]:
    """Some source is filled with these values."""
    return lambda case: any(arg is not None and values in arg.data.tag for arg in case.args)


def _odd_against_blocks(case: Case) -> bool:
    """NaN or infinity in x, and weights of a block type."""
    w, x = case.args[:2]
    return bool(w and x and w.dtype.is_block and {"nan", "inf"} & set(x.data.tag.split("_")))


def _mixed(case: Case) -> bool:
    return len(set(case.types)) > 1


def _single(case: Case) -> bool:
    """Rows have one element."""
    return case.args[0] is not None and case.args[0].ne[0] == 1


def _few_products(case: Case) -> bool:
    """A product with blocks that has few results."""
    w, x = case.args[:2]
    assert w is not None
    assert x is not None
    return w.dtype.is_block and w.ne[1] * math.prod(x.ne[1:]) < MANY


def _before_the_first(case: Case) -> bool:
    """States are asked for from before the first token."""
    x = case.args[1]
    assert x is not None
    return x.ne[2] < case.params.get("K", 1)


def _far(case: Case) -> bool:
    """What comes round has gone round more than once."""
    x, pads = case.args[0], case.params["pads"]
    assert x is not None
    sizes = [*x.ne, 1, 1, 1][:4]
    return case.params["circular"] and any(pad > sizes[i // 2] for i, pad in enumerate(pads))


def _deep(case: Case) -> bool:
    """More than two dimensions."""
    return case.args[0] is not None and math.prod(case.args[0].ne[2:]) > 1


_UNCHECKED = "ggml takes the rows for contiguous and does not check it"
_UNEVEN = "ggml takes the rows for evenly spaced and does not check it"

EARLIER, LATER = (0, 15), (0, 25)
"""Versions without what older ones did otherwise."""

_SPATIAL = """
    conv_2d_dw conv_transpose_2d im2col im2col_back pool_1d pool_2d pool_2d_back win_part win_unpart
    get_rel_pos
"""

KNOWN = (
    Known("sum mean argmax get_rows", _laid("transposed"), _UNCHECKED),
    Known("leaky_relu", _laid("transposed", "rows"), _UNCHECKED),
    Known("argsort", _laid("transposed", "permuted"), _UNCHECKED),
    Known("top_k", _laid("transposed", "permuted", "columns"), _UNCHECKED),
    Known("clamp", _laid("rows"), _UNEVEN),
    Known("ssm_conv", _laid("rows", "columns"), _UNEVEN),
    Known(_SPATIAL, _laid("permuted", "transposed", "rows", "columns"), _UNEVEN),
    Known(
        "silu_back cross_entropy_loss", _laid("permuted", "transposed", "rows", "columns"), _UNEVEN
    ),
    Known(
        "silu_back pool_2d_back add1",
        _mixed,
        "ggml reads both sources as of one type and does not check it",
    ),
    Known("pool_1d pool_2d", _filled("nan"), "a maximum of ggml forgets NaN"),
    Known("rms_norm_back", _single, "nearly all cancels in a row of one; f32 of ggml keeps less"),
    Known(
        "mul_mat mul_mat_id",
        _odd_against_blocks,
        "ggml rounds activations to 8 bits, and the largest of them forgets NaN",
    ),
    Known("mul_mat", _few_products, "ggml rounds activations to 8 bits, and few results cancel"),
    Known(
        "ssm_scan rwkv_wkv6 rwkv_wkv7 gated_linear_attn gated_delta_net",
        _before_the_first,
        "ggml does not write states from before the first token",
    ),
    Known(
        "rwkv_wkv7",
        lambda case: case.args[0] is not None and case.args[0].ne[0] % 64 > 0,
        "ggml works in steps of whole vectors and writes beyond heads that they do not fill",
    ),
    Known("pad", _far, "ggml goes round once only, and then reads elsewhere"),
    Known("count_equal", _deep, "ggml finds its way through matrices only"),
    Known("get_rel_pos", lambda case: case.types[0] == "bf16", "ggml calls the result f16"),
    Known("gelu_quick geglu_quick", _filled("1e+30"), "the table of ggml ends where f16 does"),
    Known(
        "gelu_quick geglu_quick", _filled("-40..-10"), "small results vanish in ggml's table of f16"
    ),
    Known(
        "dup cpy set_rows add add1",
        lambda case: "iq4_nl" in case.types,
        "ops of ggml take its quick encoder; ours searches, as its tools do",
    ),
    Known(
        "dup cpy set_rows add add1",
        lambda case: case.types[-1] in ("q8_0", "q8_1"),
        "vector code of ggml rounds halves to even, its reference code and ours away from zero",
    ),
    Known(
        "flash_attn_ext",
        lambda case: case.args[3] is not None and case.args[3].dtype.name == "f32",
        "older ggml takes any mask for f16",
        before=LATER,
    ),
    Known("solve_tri", lambda _case: True, "the first one of ggml was wrong", before=EARLIER),
    Known(
        "upscale",
        lambda case: case.params.get("antialias", False),
        "older ggml does not know this flag and goes on without it",
        before=EARLIER,
    ),
    Known(
        "ssm_scan",
        lambda case: case.params.get("K", 1) > 1,
        "older ggml keeps the last state only",
        before=LATER,
    ),
    Known(
        "conv_2d_dw",
        lambda case: case.types[0] != "f32",
        "older ggml takes any kernel for f32",
        before=LATER,
    ),
    Known(
        "conv_transpose_2d",
        lambda case: case.args[1] is not None and math.prod(case.args[1].ne[3:]) > 1,
        "older ggml transposes the first image only",
        before=LATER,
    ),
)
"""The first that applies is told. Elsewhere ggml must agree, and everywhere our two must."""
