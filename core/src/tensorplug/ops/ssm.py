"""Axis space models (Mamba): the convolution over time, and the selective scan."""

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import IDS, ONLY_F32, always
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op


def _convolved(call: Call) -> Shape:
    x, kernel = call["x"], call["kernel"]
    if x.ne[3] != 1:
        raise call.fail("x must have at most 3 dimensions: time, channels, sequences")
    if max(kernel.ne[2:]) > 1 or not kernel.ne[0]:
        raise call.fail("kernel must be a matrix with a row of at least 1 for each channel")
    if x.ne[1] != kernel.ne[1]:
        raise call.fail(f"channels of x and kernel differ: {x.ne[1]} and {kernel.ne[1]}")
    past = kernel.ne[0] - 1
    if x.ne[0] < past:
        raise call.fail(f"x has {x.ne[0]} steps, fewer than the {past} before the first result")
    return (x.ne[1], x.ne[0] - past, x.ne[2], 1), max(x.rank, 2)


SSM_CONV = register_op(
    Op(
        "ssm_conv",
        sources=(Source("x", ONLY_F32), Source("kernel", ONLY_F32)),
        shape=_convolved,
        dtype=always(F32),
        split=ways(
            Way({"x": 1, "kernel": 1}, 0),
            Way({"x": 2}, 2),
            Way({"x": PARTIAL}, PARTIAL),
            Way({"kernel": PARTIAL}, PARTIAL),
        ),
        formula="y[c, t, s] = sum over i of x[t + i, c, s] * kernel[i, c]",
        origin="Gu and Dao 2023, arXiv:2312.00752",
    )
)


def packed(call: Call, outputs: int, state: int) -> int:
    """The number of elements of a result with `outputs` elements and then K states of `state`."""
    if call.int("K") < 1:
        raise call.fail(f"K = {call.int('K')} states to keep; K must be at least 1")
    return outputs + call.int("K") * state


def _scanned(call: Call) -> Shape:
    s, x, dt, a = (call[name] for name in ("s", "x", "dt", "a"))
    (size, dim, heads, _), (_, _, tokens, sequences) = s.ne, x.ne
    if x.ne[:2] != (dim, heads):
        raise call.fail(f"x must be [{dim}, {heads}, tokens, sequences], as s is [n, dim, heads]")
    if dt.ne != (heads, tokens, sequences, 1):
        raise call.fail(f"dt must be [{heads}, {tokens}, {sequences}]: heads, tokens, sequences")
    if a.ne not in ((1, heads, 1, 1), (size, heads, 1, 1)):
        raise call.fail(f"a must be [1, {heads}] or [{size}, {heads}]: one or n for each head")
    for name in "bc":
        n, groups, *others = call[name].ne
        if n != size or groups < 1 or heads % groups or others != [tokens, sequences]:
            raise call.fail(
                f"{name} must be [{size}, groups, {tokens}, {sequences}] with groups that divide "
                f"the {heads} heads"
            )
    if call["b"].ne[1] != call["c"].ne[1]:
        raise call.fail(f"b and c have {call['b'].ne[1]} and {call['c'].ne[1]} groups")
    if call["ids"].ne != (sequences, 1, 1, 1):
        raise call.fail(f"ids must be a vector of {sequences}, one for each sequence")
    return (packed(call, x.size, size * dim * heads * sequences), 1, 1, 1), 1


SSM_SCAN = register_op(
    Op(
        "ssm_scan",
        sources=(
            *(Source(name, ONLY_F32) for name in ("s", "x", "dt", "a", "b", "c")),
            Source("ids", IDS, rows_of=("s", 3)),
        ),
        params=(Param("K", int, default=1),),
        shape=_scanned,
        dtype=always(F32),
        split=ways(
            Way({"s": PARTIAL, "x": PARTIAL}, PARTIAL),
            Way({"s": PARTIAL, "b": PARTIAL}, PARTIAL),
        ),
        formula="d = softplus(dt), s = s * exp(d * a) + d * x * b, y = sum over n of s * c",
        origin="Gu and Dao 2023, arXiv:2312.00752; Dao and Gu 2024, arXiv:2405.21060",
    )
)


def ssm_conv(x: Tensor, kernel: Tensor, *, name: str = "") -> Tensor:
    """Causal convolution of each channel of `x` over time.

    `x` is f32 [d - 1 + tokens, channels, sequences] and starts with the last d - 1 steps before the
    tokens; `kernel` is f32 [d, channels]. The result is [channels, tokens, sequences]: time and
    channels are swapped. Raises ShapeError.

    >>> x = tp.input("x", (1, 16, 8), tp.F32)
    >>> kernel = tp.input("kernel", (16, 4), tp.F32)
    >>> tp.ssm_conv(x, kernel).shape
    (1, 5, 16)
    """
    return apply(SSM_CONV, x, kernel, name=name)


def ssm_scan(
    s: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    ids: Tensor,
    *,
    K: int = 1,  # noqa: N803 - the name in ggml
    name: str = "",
) -> Tensor:
    """Selective scan of Mamba (`a` [n, heads], dim 1) and Mamba-2 (`a` [1, heads]).

    `s` is f32 [n, dim, heads, states], `x` [dim, heads, tokens, sequences], `dt` [heads, tokens,
    sequences], `b` and `c` [n, groups, tokens, sequences] (head h is of group h // (heads /
    groups)). `ids` i32 [sequences] numbers the state in `s` from which each sequence starts; with
    -1 it starts from zeros. Any other id outside `s` is an error; `tensorplug.ops.ids` says when it
    is raised. The result is a vector: outputs like `x`, then `K` states [n, dim, heads, sequences]:
    the states after the last token, after the token before it, and so on. States from before the
    first token are zero. Raises ShapeError.

    >>> s = tp.input("s", (3, 4, 8, 16), tp.F32)
    >>> x = tp.input("x", (2, 5, 4, 8), tp.F32)
    >>> dt = tp.input("dt", (2, 5, 4), tp.F32)
    >>> a = tp.input("a", (4, 1), tp.F32)
    >>> b = tp.input("b", (2, 5, 1, 16), tp.F32)
    >>> c = tp.input("c", (2, 5, 1, 16), tp.F32)
    >>> ids = tp.input("ids", (2,), tp.I32)
    >>> tp.ssm_scan(s, x, dt, a, b, c, ids).shape
    (1344,)
    """
    return apply(SSM_SCAN, s, x, dt, a, b, c, ids, K=K, name=name)
