"""Linear attention (RWKV, GLA, delta nets): each head has a matrix that every token updates."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, always, divides
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.ssm import packed
from tensorplug.ops.table import Call, Op, Param, Shape, ShapeRule, Source, apply, register_op

_SUMMANDS = ways(Way({"v": PARTIAL, "state": PARTIAL}, PARTIAL))
"""Outputs and new states are linear in the values and the initial states together."""


def _attended(*names: str) -> ShapeRule:
    """The result has rows of outputs, then rows of states; `names` are [size, heads, tokens]."""

    def rule(call: Call) -> Shape:
        size, heads, tokens, more = call[names[0]].ne
        width, (row, sequences, *others) = size * size * heads, call["state"].ne
        if more != 1:
            raise call.fail(f"{names[0]} must be [size, heads, tokens of all sequences]")
        for name in names[1:]:
            if call[name].ne != (size, heads, tokens, 1):
                raise call.fail(f"{name} must be [{size}, {heads}, {tokens}] like {names[0]}")
        if row != width or others != [1, 1]:
            raise call.fail(f"state must be [{width} = size * size * heads, sequences]")
        if not sequences or tokens % sequences:
            raise call.fail(f"{sequences} sequences cannot share {tokens} tokens evenly")
        return (size * heads, tokens + size * sequences, 1, 1), 2

    return rule


def _bonus_fits(call: Call) -> None:
    k, tf = call["k"], call["tf"]
    if tf.ne != (*k.ne[:2], 1, 1):
        raise call.fail(f"tf must be [{k.ne[0]}, {k.ne[1]}]: size, heads")


def _sources(*names: str) -> tuple[Source, ...]:
    return tuple(Source(name, ONLY_F32) for name in names)


RWKV_WKV6 = register_op(
    Op(
        "rwkv_wkv6",
        sources=_sources("k", "v", "r", "tf", "td", "state"),
        shape=_attended("k", "v", "r", "td"),
        dtype=always(F32),
        check=(_bonus_fits,),
        split=_SUMMANDS,
        formula="y[j] = sum over i of r[i] (s[i, j] + tf[i] k[i] v[j]), s = td[i] s + k[i] v[j]",
        origin="Peng et al. 2024, arXiv:2404.05892",
    )
)
RWKV_WKV7 = register_op(
    Op(
        "rwkv_wkv7",
        sources=_sources("r", "w", "k", "v", "a", "b", "state"),
        shape=_attended("r", "w", "k", "v", "a", "b"),
        dtype=always(F32),
        split=_SUMMANDS,
        formula="s[i, j] = w[i] s[i, j] + k[i] v[j] + b[i] (a s)[j], y = r s",
        origin="Peng et al. 2025, arXiv:2503.14456",
    )
)
GATED_LINEAR_ATTN = register_op(
    Op(
        "gated_linear_attn",
        sources=_sources("k", "v", "q", "g", "state"),
        params=(Param("scale", float, default=1.0),),
        shape=_attended("k", "v", "q", "g"),
        dtype=always(F32),
        split=_SUMMANDS,
        formula="s = g[i] s + k[i] v[j], y[j] = scale * sum over i of q[i] s[i, j]",
        origin="Yang et al. 2023, arXiv:2312.06635",
    )
)


def _corrected(call: Call) -> Shape:
    v = call["v"]
    size, heads, tokens, sequences = v.ne
    for name in "qk":
        n, shared, length, batch = call[name].ne
        if (n, length) != (size, tokens):
            raise call.fail(f"{name} must be [{size}, heads, {tokens}, sequences] like v")
        if not divides(shared, heads) or not divides(batch, sequences):
            raise call.fail(f"the heads or sequences of v are not a multiple of those of {name}")
    if call["g"].ne not in ((1, *v.ne[1:]), v.ne):
        raise call.fail("g must have the shape of v, or one element for each head")
    if call["beta"].ne != (1, *v.ne[1:]):
        raise call.fail("beta must have one element for each head, token and sequence of v")
    if call["state"].ne != (size, size, heads, sequences):
        raise call.fail(f"state must be [{size}, {size}, {heads}, {sequences}]")
    return (size * heads, packed(call, tokens * sequences, size * sequences), 1, 1), 2


GATED_DELTA_NET = register_op(
    Op(
        "gated_delta_net",
        sources=_sources("q", "k", "v", "g", "beta", "state"),
        params=(Param("K", int, default=1),),
        shape=_corrected,
        dtype=always(F32),
        split=_SUMMANDS,
        formula="s = exp(g) s, s += k beta (v - k s), y = q s / sqrt(size)",
        origin="Yang et al. 2024, arXiv:2412.06464; Kimi Team 2025, arXiv:2510.26692",
    )
)


def rwkv_wkv6(
    k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor, *, name: str = ""
) -> Tensor:
    """Recurrence of RWKV-6 with decays `td` and a bonus `tf` for the current token.

    `k`, `v`, `r` and `td` are f32 [size, heads, tokens]; the tokens of one sequence are
    consecutive. `tf` is [size, heads]. `state` is [size * size * heads, sequences]; the state of a
    head is [size of v, size of k]. The result is [size * heads, tokens + size * sequences]: a row
    for each token, then the final states as rows. Raises ShapeError.

    >>> k = tp.input("k", (5, 4, 8), tp.F32)
    >>> v = tp.input("v", (5, 4, 8), tp.F32)
    >>> r = tp.input("r", (5, 4, 8), tp.F32)
    >>> tf = tp.input("tf", (4, 8), tp.F32)
    >>> td = tp.input("td", (5, 4, 8), tp.F32)
    >>> state = tp.input("state", (1, 256), tp.F32)
    >>> tp.rwkv_wkv6(k, v, r, tf, td, state).shape
    (13, 32)
    """
    return apply(RWKV_WKV6, k, v, r, tf, td, state, name=name)


def rwkv_wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    *,
    name: str = "",
) -> Tensor:
    """Recurrence of RWKV-7 with decays `w` and a low-rank update of the state by `a` and `b`.

    All sources except `state` are f32 [size, heads, tokens]; the tokens of one sequence are
    consecutive. `state` is [size * size * heads, sequences]; the state of a head is [size of k,
    size of v], the transpose of that of `rwkv_wkv6`. The result is [size * heads, tokens + size *
    sequences]: a row for each token, then the final states as rows. Raises ShapeError.

    >>> r = tp.input("r", (5, 4, 8), tp.F32)
    >>> w = tp.input("w", (5, 4, 8), tp.F32)
    >>> k = tp.input("k", (5, 4, 8), tp.F32)
    >>> v = tp.input("v", (5, 4, 8), tp.F32)
    >>> a = tp.input("a", (5, 4, 8), tp.F32)
    >>> b = tp.input("b", (5, 4, 8), tp.F32)
    >>> state = tp.input("state", (1, 256), tp.F32)
    >>> tp.rwkv_wkv7(r, w, k, v, a, b, state).shape
    (13, 32)
    """
    return apply(RWKV_WKV7, r, w, k, v, a, b, state, name=name)


def gated_linear_attn(
    k: Tensor,
    v: Tensor,
    q: Tensor,
    g: Tensor,
    state: Tensor,
    *,
    scale: float = 1.0,
    name: str = "",
) -> Tensor:
    """Gated linear attention with a gate `g` for each element of `k`.

    `k`, `v`, `q` and `g` are f32 [size, heads, tokens]; the tokens of one sequence are consecutive.
    `state` is [size * size * heads, sequences]; the state of a head is [size of v, size of k]. The
    result is [size * heads, tokens + size * sequences]: a row for each token, then the final states
    as rows. Raises ShapeError.

    >>> k = tp.input("k", (5, 4, 8), tp.F32)
    >>> v = tp.input("v", (5, 4, 8), tp.F32)
    >>> q = tp.input("q", (5, 4, 8), tp.F32)
    >>> g = tp.input("g", (5, 4, 8), tp.F32)
    >>> state = tp.input("state", (1, 256), tp.F32)
    >>> tp.gated_linear_attn(k, v, q, g, state).shape
    (13, 32)
    """
    return apply(GATED_LINEAR_ATTN, k, v, q, g, state, scale=float(scale), name=name)


def gated_delta_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    K: int = 1,  # noqa: N803 - the name in ggml
    name: str = "",
) -> Tensor:
    """Gated delta rule: the state decays by `exp(g)` and is corrected by its error about `v`.

    `v` is f32 [size, heads, tokens, sequences]. `q` and `k` may have fewer heads (head h of `v`
    uses head h modulo their number) and fewer sequences (consecutive sequences of `v` share one).
    `g` is [1 or size, heads, tokens, sequences]: one gate for all elements of `k`, or one for each.
    `beta` is [1, heads, tokens, sequences]; `state` is [size of k, size of v, heads, sequences].
    The result is [size * heads, rows]: a row for each token, then the rows of `K` states: those
    after the last token, after the token before it, and so on. States from before the first token
    are zero. Raises ShapeError.

    >>> q = tp.input("q", (5, 4, 8), tp.F32)
    >>> k = tp.input("k", (5, 4, 8), tp.F32)
    >>> v = tp.input("v", (5, 4, 8), tp.F32)
    >>> g = tp.input("g", (5, 4, 1), tp.F32)
    >>> beta = tp.input("beta", (5, 4, 1), tp.F32)
    >>> state = tp.input("state", (4, 8, 8), tp.F32)
    >>> tp.gated_delta_net(q, k, v, g, beta, state).shape
    (13, 32)
    """
    return apply(GATED_DELTA_NET, q, k, v, g, beta, state, K=K, name=name)
