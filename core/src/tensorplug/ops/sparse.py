"""Ops of DeepSeek models: the indexer of sparse attention, and hyper-connections (HC)."""

import math
from collections.abc import Iterable

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.matmul import WEIGHTS
from tensorplug.ops.rules import ONLY_F32, always, divides
from tensorplug.ops.softmax import MASKS
from tensorplug.ops.split import PARTIAL, Axis, Way, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op


def _scored(call: Call) -> Shape:
    q, mask = call["q"], call["mask"]
    size, heads, tokens, batch = q.ne
    positions = call["k"].ne[2]
    if call["k"].ne != (size, 1, positions, batch):
        raise call.fail(f"k must be [{size}, 1, positions, {batch}]: all heads of q share one head")
    if call["weights"].ne != (heads, tokens, 1, batch):
        raise call.fail(f"weights must be [{heads}, {tokens}, 1, {batch}]: heads, tokens of q")
    if mask.ne[:3] != (positions, tokens, 1):
        raise call.fail(f"mask must be [{positions}, {tokens}, 1, batch]: positions, tokens")
    if not divides(mask.ne[3], batch):
        raise call.fail(f"mask has a batch of {mask.ne[3]}, which does not divide {batch}")
    return (positions, tokens, 1, batch), 4 if batch > 1 else 2


def _score_parts(call: Call) -> Iterable[Way]:
    yield Way({"k": 2, "mask": 0}, 0)
    yield Way({"q": 2, "weights": 1, "mask": 1}, 1)
    if call["mask"].ne[3] in (1, call["q"].ne[3]):
        masked: dict[str, Axis] = {} if call["mask"].ne[3] == 1 else {"mask": 3}
        yield Way({"q": 3, "k": 3, "weights": 3, **masked}, 3)


LIGHTNING_INDEXER = register_op(
    Op(
        "lightning_indexer",
        sources=(
            Source("q", ONLY_F32),
            Source("k", WEIGHTS),
            Source("weights", ONLY_F32),
            Source("mask", MASKS),
        ),
        shape=_scored,
        dtype=always(F32),
        split=_score_parts,
        formula="y[n, t] = sum over h of weights[h, t] * relu(q[h, t] . k[n]) + mask[n, t]",
        origin="DeepSeek-AI 2025, arXiv:2512.02556",
    )
)

STREAMS = "Xie et al. 2025, arXiv:2512.24880"


def _mixed(call: Call) -> Shape:
    mixes, scale, base = call["mixes"], call["scale"], call["base"]
    size, tokens, *others = mixes.ne
    streams = math.isqrt(size + 1) - 1
    if streams < 1 or size != (2 + streams) * streams or others != [1, 1]:
        raise call.fail("mixes must be [(2 + n) * n, tokens] for n streams")
    if scale.ne[0] < 3 or max(scale.ne[1:]) > 1:
        raise call.fail("scale must be a vector of at least 3")
    if base.ne != (size, 1, 1, 1):
        raise call.fail(f"base must be a vector of {size}")
    if call.int("n_iter") < 1:
        raise call.fail(f"n_iter = {call.int('n_iter')}; n_iter must be at least 1")
    return (streams, streams, tokens, 1), 3


DSV4_HC_COMB = register_op(
    Op(
        "dsv4_hc_comb",
        sources=(Source("mixes", ONLY_F32), Source("scale", ONLY_F32), Source("base", ONLY_F32)),
        params=(Param("eps", float, required=True), Param("n_iter", int, required=True)),
        shape=_mixed,
        dtype=always(F32),
        split=ways(Way({"mixes": 1}, 2)),
        formula="y = softmax over dst of (scale[2] * mixes + base) + eps, then n_iter times over "
        "src, and over dst between: y / (sum of y + eps)",
        origin=STREAMS,
    )
)


def _joined(call: Call) -> Shape:
    x, weights = call["x"], call["weights"]
    size, streams, tokens, more = x.ne
    if more != 1:
        raise call.fail("x must be [size, streams, tokens]")
    if not streams:
        raise call.fail("x has no streams; it must have at least one")
    if call.params["gated"]:
        if weights.ne != x.ne:
            raise call.fail("weights that are gates must have the shape of x")
    elif weights.ne != (streams, tokens, 1, 1):
        raise call.fail(f"weights must be [{streams}, {tokens}]: streams, tokens")
    return (size, tokens, 1, 1), 2


def _join_parts(call: Call) -> Iterable[Way]:
    if call.params["gated"]:
        yield Way({"x": 0, "weights": 0}, 0)
        yield Way({"x": 1, "weights": 1}, PARTIAL)
        yield Way({"x": 2, "weights": 2}, 1)
    else:
        yield Way({"x": 0}, 0)
        yield Way({"x": 1, "weights": 0}, PARTIAL)
        yield Way({"x": 2, "weights": 1}, 1)
        yield Way({"weights": PARTIAL}, PARTIAL)
    yield Way({"x": PARTIAL}, PARTIAL)


DSV4_HC_PRE = register_op(
    Op(
        "dsv4_hc_pre",
        sources=(Source("x", ONLY_F32), Source("weights", ONLY_F32)),
        params=(Param("gated", bool, default=False), Param("scale", float, default=1.0)),
        shape=_joined,
        dtype=always(F32),
        split=_join_parts,
        formula="y[i, t] = scale * sum over h of x[i, h, t] * (weights[h, t], or sigmoid(weights"
        "[i, h, t]) if gated)",
        origin=STREAMS,
    )
)


def _parted(call: Call) -> Shape:
    residual, comb = call["residual"], call.get("comb")
    size, streams, tokens, more = residual.ne
    if more != 1:
        raise call.fail("residual must be [size, streams, tokens]")
    if call["x"].ne != (size, tokens, 1, 1):
        raise call.fail(f"x must be [{size}, {tokens}]: size, tokens of residual")
    if call["post"].ne != (streams, tokens, 1, 1):
        raise call.fail(f"post must be [{streams}, {tokens}]: streams, tokens of residual")
    if comb is not None and comb.ne != (streams, streams, tokens, 1):
        raise call.fail(f"comb must be [{streams}, {streams}, {tokens}]: streams twice, tokens")
    return residual.ne, 3


def _part_parts(call: Call) -> Iterable[Way]:
    yield Way({"x": 0, "residual": 0}, 0)
    yield Way({"x": PARTIAL, "residual": PARTIAL}, PARTIAL)
    if call.get("comb") is None:
        yield Way({"residual": 1, "post": 0}, 1)
        yield Way({"x": 1, "residual": 2, "post": 1}, 2)
    else:
        yield Way({"x": 1, "residual": 2, "post": 1, "comb": 2}, 2)
        yield Way({"post": PARTIAL, "comb": PARTIAL}, PARTIAL)


DSV4_HC_POST = register_op(
    Op(
        "dsv4_hc_post",
        sources=(
            Source("x", ONLY_F32),
            Source("residual", ONLY_F32),
            Source("post", ONLY_F32),
            Source("comb", ONLY_F32, optional=True),
        ),
        shape=_parted,
        dtype=always(F32),
        split=_part_parts,
        formula="y[i, d, t] = x[i, t] post[d, t] + sum over s of residual[i, s, t] comb[d, s, t]",
        origin=STREAMS,
    )
)


def lightning_indexer(
    q: Tensor, k: Tensor, weights: Tensor, mask: Tensor, *, name: str = ""
) -> Tensor:
    """Scores by which sparse attention selects positions.

    `q` is f32 [size, heads, tokens, batch], `k` [size, 1, positions, batch] of any type, `weights`
    f32 [heads, tokens, 1, batch] with all scales already applied, `mask` f16 or f32 [positions,
    tokens, 1, b] where b divides batch: entry i of the batch uses mask i modulo b. The result is
    f32 [positions, tokens, 1, batch]. Raises ShapeError.

    >>> q = tp.input("q", (5, 4, 64), tp.F32)
    >>> k = tp.input("k", (20, 1, 64), tp.F32)
    >>> weights = tp.input("weights", (5, 4), tp.F32)
    >>> mask = tp.input("mask", (5, 20), tp.F32)
    >>> tp.lightning_indexer(q, k, weights, mask).shape
    (5, 20)
    """
    return apply(LIGHTNING_INDEXER, q, k, weights, mask, name=name)


def dsv4_hc_comb(
    mixes: Tensor, scale: Tensor, base: Tensor, *, eps: float, n_iter: int, name: str = ""
) -> Tensor:
    """Matrices that mix n residual streams, made nearly doubly stochastic in `n_iter` rounds.

    `mixes` is f32 [(2 + n) * n, tokens]; the matrix of a token is made of all but its first 2 n
    elements. `scale` is [at least 3], and its third element is used; `base` is [(2 + n) * n]. The
    result is [n of the result, n of the source, tokens], for `dsv4_hc_post`. Raises ShapeError.

    >>> mixes = tp.input("mixes", (5, 24), tp.F32)
    >>> scale = tp.input("scale", (3,), tp.F32)
    >>> base = tp.input("base", (24,), tp.F32)
    >>> tp.dsv4_hc_comb(mixes, scale, base, eps=1e-6, n_iter=20).shape
    (5, 4, 4)
    """
    return apply(DSV4_HC_COMB, mixes, scale, base, eps=float(eps), n_iter=n_iter, name=name)


def dsv4_hc_pre(
    x: Tensor, weights: Tensor, *, gated: bool = False, scale: float = 1.0, name: str = ""
) -> Tensor:
    """Join residual streams: the weighted sum of f32 `x` [size, streams, tokens] over streams.

    `weights` is f32 [streams, tokens]. With `gated` it has the shape of `x`, and the weights are
    its sigmoid. The result is `scale` times the sum: [size, tokens]. Raises ShapeError.

    >>> x = tp.input("x", (5, 4, 64), tp.F32)
    >>> weights = tp.input("weights", (5, 4), tp.F32)
    >>> tp.dsv4_hc_pre(x, weights).shape
    (5, 64)
    """
    return apply(DSV4_HC_PRE, x, weights, gated=gated, scale=float(scale), name=name)


def dsv4_hc_post(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor | None = None, *, name: str = ""
) -> Tensor:
    """Add f32 `x` [size, tokens] to mixed residual streams `residual` [size, streams, tokens].

    `post` is f32 [streams, tokens], the factor of `x` for each stream. `comb` is [streams of the
    result, streams of the source, tokens]; without `comb` the streams are not mixed. The result has
    the shape of `residual`. Raises ShapeError.

    >>> x = tp.input("x", (5, 64), tp.F32)
    >>> residual = tp.input("residual", (5, 4, 64), tp.F32)
    >>> post = tp.input("post", (5, 4), tp.F32)
    >>> tp.dsv4_hc_post(x, residual, post).shape
    (5, 4, 64)
    """
    return apply(DSV4_HC_POST, x, residual, post, comb, name=name)
