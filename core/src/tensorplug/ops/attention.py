"""Attention in one op."""

from collections.abc import Iterable

from tensorplug.dtypes import F32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.matmul import WEIGHTS
from tensorplug.ops.rules import ONLY_F32, always, check_max_bias, repeat_over_batch
from tensorplug.ops.softmax import MASKS
from tensorplug.ops.split import PARTIAL, Axis, Way
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op


def _attended(call: Call) -> Shape:
    q, k, v, mask, sinks = (call.get(s) for s in ("q", "k", "v", "mask", "sinks"))
    assert q is not None
    assert k is not None
    assert v is not None
    if q.ne[0] != k.ne[0]:
        raise call.fail(f"head sizes of q and k differ: {q.ne[0]} and {k.ne[0]}")
    if k.ne[1] != v.ne[1] or k.ne[2:] != v.ne[2:]:
        raise call.fail("k and v differ in positions, heads or batch")
    if not repeat_over_batch(k, q):
        raise call.fail("the heads or the batch of q are not a multiple of those of k")
    if mask is not None:
        if mask.ne[0] != k.ne[1] or mask.ne[1] < q.ne[1]:
            raise call.fail("mask must be [positions of k, at least the tokens of q]")
        if not repeat_over_batch(mask, q):
            raise call.fail("mask does not repeat over the heads and batch of q")
    check_max_bias(call)
    if sinks is not None and sinks.ne != (q.ne[2], 1, 1, 1):
        raise call.fail("sinks must have one element for each head of q")
    return (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), max(q.rank, 3)


def _parts(call: Call) -> Iterable[Way]:
    q, mask = call["q"], call.get("mask")

    def masked(axis: int) -> dict[str, Axis]:
        return {} if mask is None or mask.ne[axis] == 1 else {"mask": axis}

    if mask is None or mask.ne[1] == q.ne[1]:
        yield Way({"q": 1, **masked(1)}, 2)
    # Heads of q share heads of k and v, so both are cut in the same proportion. With max_bias the
    # mask is scaled by a slope that depends on the number of the head, so heads are not cut.
    if not call.params["max_bias"] and (mask is None or mask.ne[2] in (1, q.ne[2])):
        sinks: dict[str, Axis] = {} if call.get("sinks") is None else {"sinks": 0}
        heads: dict[str, Axis] = {} if call["k"].ne[2] == 1 else {"k": 2, "v": 2}
        yield Way({"q": 2, **heads, **masked(2), **sinks}, 1)
    if mask is None or mask.ne[3] in (1, q.ne[3]):
        batches: dict[str, Axis] = {} if call["k"].ne[3] == 1 else {"k": 3, "v": 3}
        yield Way({"q": 3, **batches, **masked(3)}, 3)
    yield Way({"v": PARTIAL}, PARTIAL)


FLASH_ATTN_EXT = register_op(
    Op(
        "flash_attn_ext",
        sources=(
            Source("q", ONLY_F32),
            Source("k", WEIGHTS),
            Source("v", WEIGHTS),
            Source("mask", MASKS, optional=True),
            Source("sinks", ONLY_F32, optional=True),
        ),
        params=(
            Param("scale", float, required=True),
            Param("max_bias", float, default=0.0),
            Param("softcap", float, default=0.0),
        ),
        shape=_attended,
        dtype=always(F32),
        split=_parts,
        formula="y = softmax(cap(scale * k q) + slope * mask) v, cap(z) = softcap*tanh(z/softcap)",
        origin="Dao et al. 2022, arXiv:2205.14135",
    )
)


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float,
    max_bias: float = 0.0,
    softcap: float = 0.0,
    name: str = "",
) -> Tensor:
    """Attention of `q` [d, tokens, heads, batch] to keys `k` [d, n, kv heads, b] and values `v`.

    `v` is [e, n, kv heads, b], in `ne` order. Consecutive heads and batches of `q` share those of
    `k` and `v`, as in `mul_mat`. `mask` is f32 or f16 [n, at least tokens, ...]; head and batch i
    use mask i modulo the number of masks. `max_bias` above 0 scales the mask by a slope for each
    head (ALiBi). `sinks` [heads] adds a term to the divisor of each head. `softcap` limits scores.
    The result is f32 [e, heads, tokens, batch]: heads and tokens are swapped. A token whose mask is
    -inf everywhere gives zeros. Raises ShapeError.

    >>> q = tp.input("q", (8, 5, 64), tp.F32)
    >>> k = tp.input("k", (2, 20, 64), tp.F32)
    >>> v = tp.input("v", (2, 20, 64), tp.F32)
    >>> tp.flash_attn_ext(q, k, v, scale=64**-0.5).shape
    (5, 8, 64)
    """
    return apply(
        FLASH_ATTN_EXT,
        q,
        k,
        v,
        mask,
        sinks,
        scale=float(scale),
        max_bias=float(max_bias),
        softcap=float(softcap),
        name=name,
    )
