"""The experts of each token and their weights, in one launch."""

from math import inf

from tensorplug.device import Group, Tensor, contiguous_nb
from tensorplug.dtypes import F32, I32
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.elements import TEXT as ELEMENTWISE
from tensorplug_simt.families.sort import TEXT as SORT
from tensorplug_simt.grids import power_of_two
from tensorplug_simt.lowering import NoKernel, need_type, number
from tensorplug_simt.program import Kernel, Program, Region, blocks_of, launch

NUMBERS = ("sharpness", "late", "least", "most", "scale", "shift")
ROUTE = Kernel(
    "route",
    "tensorplug_cuda:kernels/route.cu",
    ("logits", "bias", "ids", "weights"),
    ("ids", "weights"),
    tuple((name, "float") for name in NUMBERS),
    (ELEMENTWISE, SORT),
)
WARP = 32
KEPT = 16
"""Experts that an item of a warp has at most."""


def route(group: Group, _facts: Facts) -> Program:
    """Scores of all experts, the best of them, and their scores or their scores' shares."""
    scores = group["scores"]
    soft = scores.op == "soft_max"
    kind: dict[str, int | str] = {"SOFT_MAX": 1} if soft else {"FUNCTION": f"of_{scores.op}"}
    kind |= {"ROOTED": 1} if "rooted" in group else {}
    kind |= {"SHARES": 1} if "shared" in group else {}
    numbers = {"sharpness": number(scores, "scale") if soft else 1.0}
    if "floored" in group:
        floored = group["floored"]
        numbers |= {"least": number(floored, "min"), "most": number(floored, "max")}
    if "weights" in group:
        scaled = group["weights"]
        numbers |= {"scale": number(scaled, "scale"), "shift": number(scaled, "bias")}
    return _program(group, kind, numbers)


def route_late(group: Group, _facts: Facts) -> Program:
    """The best logits, and a softmax over only these."""
    return _program(group, {"LATE": 1}, {"late": number(group["weights"], "scale")})


def _program(group: Group, kind: dict[str, int | str], numbers: dict[str, float]) -> Program:
    logits, ids, weights = group["logits"], group["ids"], group.last
    experts, tokens = logits.ne[:2]
    chosen = ids.ne[0]
    if logits.ne[2:] != (1, 1) or ids.ne[1:] != (tokens, 1, 1) or experts > WARP * KEPT:
        raise NoKernel(f"no kernel for {logits} and {ids}")
    if chosen > WARP or weights.size != chosen * tokens or not weights.is_contiguous:
        raise NoKernel(f"no kernel for weights of {weights}")
    need_type(logits, frozenset({F32}))
    need_type(weights, frozenset({F32}))
    need_type(ids, frozenset({I32}))
    ne = (chosen, tokens, 1, 1)
    regions: dict[str, Tensor | Region] = {
        "logits": logits,
        "ids": ids,
        "weights": Region(weights, F32, ne, contiguous_nb(F32, ne)),
    }
    if "bias" in group:
        regions["bias"] = _bias(group["bias"], experts)
    usual = {"sharpness": 1.0, "late": 1.0, "least": -inf, "most": inf, "scale": 1.0, "shift": 0.0}
    kept = power_of_two(blocks_of(experts, WARP))
    routed = launch(
        ROUTE,
        regions,
        groups=(tokens,),
        local=(WARP,),
        defines={"KEPT": kept, **kind},
        numbers={**usual, **numbers},
    )
    return Program((routed,))


def _bias(bias: Tensor, experts: int) -> Tensor:
    need_type(bias, frozenset({F32}))
    if bias.ne[0] != experts:
        raise NoKernel(f"no kernel for a bias of {bias}")
    return bias
