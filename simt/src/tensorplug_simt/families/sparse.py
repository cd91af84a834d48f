"""Scores of positions for sparse attention, and the mixing of residual streams."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import SMALL_FLOATS, NoKernel, lowers, need_type, need_types, number
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

TEXT = "tensorplug_simt:kernels/sparse.k"
LARGEST = 512
"""The largest key that an item can hold."""
MOST = 32
"""The most streams whose matrix an item can hold."""
_TOGETHER, _TOKENS = 32, 4
"""Positions of a group; tokens for which a decoded key is used."""

INDEXER = Kernel(
    "lightning_indexer", TEXT, ("q", "k", "weights", "mask", "y"), ("y",), (("tokens", "int"),)
)
COMB = Kernel(
    "dsv4_hc_comb",
    TEXT,
    ("mixes", "scale", "base", "y"),
    ("y",),
    (("count", "uint"), ("rounds", "int"), ("eps", "float")),
)
PRE = Kernel(
    "dsv4_hc_pre",
    TEXT,
    ("x", "weights", "y"),
    ("y",),
    (("count", "uint"), ("gated", "int"), ("scale", "float")),
)
POST = Kernel(
    "dsv4_hc_post", TEXT, ("x", "residual", "post", "comb", "y"), ("y",), (("count", "uint"),)
)


@lowers("lightning_indexer")
def lightning_indexer(node: Tensor, facts: Facts) -> Program:
    """The weighted sum over heads of scores that are not negative, and a mask."""
    q, k, weights, mask = node.sources
    for tensor in (q, weights, mask, *(() if k.dtype.is_block else (k,))):
        need_type(tensor, SMALL_FLOATS)
    size, tokens, batch = q.ne[0], q.ne[2], q.ne[3]
    if size > LARGEST:
        raise NoKernel(f"keys of {size} elements; the kernel ends at {LARGEST}")
    if k.dtype.is_block and size % k.dtype.block:
        raise NoKernel(f"keys of {size} elements end within a block of {k.dtype.name}")
    together = min(_TOGETHER, facts.max_group)
    groups = (blocks_of(node.ne[0], together), blocks_of(tokens, _TOKENS), batch)
    scores = launch(
        INDEXER,
        regions_of(INDEXER, node),
        groups=groups,
        local=(together,),
        defines={"SIZE": size},
        tokens=_TOKENS,
    )
    return Program((scores,))


@lowers("dsv4_hc_comb")
def dsv4_hc_comb(node: Tensor, facts: Facts) -> Program:
    """A matrix for each token, whose rows and columns have sums of 1."""
    need_types(node, frozenset({F32}))
    streams, _, tokens, _ = node.ne
    if streams > MOST:
        raise NoKernel(f"{streams} streams; the kernel ends at {MOST}")
    regions = regions_of(COMB, node)
    rounds, eps = int(number(node, "n_iter")), number(node, "eps")
    size = {"STREAMS": streams}
    return Program(
        (per_element(COMB, regions, tokens, facts, defines=size, rounds=rounds, eps=eps),)
    )


@lowers("dsv4_hc_pre")
def dsv4_hc_pre(node: Tensor, facts: Facts) -> Program:
    """The sum of the streams, by weight."""
    need_types(node, frozenset({F32}))
    regions = regions_of(PRE, node)
    gated, scale = int(bool(node.params["gated"])), number(node, "scale")
    return Program((per_element(PRE, regions, node.size, facts, gated=gated, scale=scale),))


@lowers("dsv4_hc_post")
def dsv4_hc_post(node: Tensor, facts: Facts) -> Program:
    """What is added to each stream, and the streams mixed."""
    need_types(node, frozenset({F32}))
    return Program((per_element(POST, regions_of(POST, node), node.size, facts),))
