"""The gradient of `repeat`: the sum over its copies."""

from collections.abc import Iterable

from tensorplug.dtypes import F16, F32
from tensorplug.graph.tensor import Tensor, ne_of
from tensorplug.ops.rules import divides, same_type_as
from tensorplug.ops.split import AXES, Way, any_of, linear
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op


def _summed(call: Call) -> Shape:
    x, wanted = call["x"], call.params["ne"]
    assert isinstance(wanted, tuple)
    a, b, c, d = (n if isinstance(n, int) else 0 for n in wanted)
    if not all(divides(n, large) for n, large in zip((a, b, c, d), x.ne, strict=True)):
        raise call.fail(f"sizes {wanted} do not repeat to those of x")
    return (a, b, c, d), call.int("rank")


def _kept_parts(call: Call) -> Iterable[Way]:
    wanted = call.params["ne"]
    assert isinstance(wanted, tuple)
    x = call["x"]
    kept = [axis for axis in AXES if x.ne[axis] == wanted[axis]]
    return [Way({"x": axis}, axis) for axis in kept if x.ne[axis] > 1]


REPEAT_BACK = register_op(
    Op(
        "repeat_back",
        sources=(Source("x", frozenset({F32, F16})),),
        params=(Param("ne", tuple, required=True), Param("rank", int, required=True)),
        shape=_summed,
        dtype=same_type_as("x"),
        split=any_of(_kept_parts, linear("x")),
        formula="y = sum of the parts of x at which repeat(y) has the copies of y",
    )
)


def repeat_back(x: Tensor, shape: tuple[int, ...], *, name: str = "") -> Tensor:
    """Sum the repetitions in f32 or f16 `x` to `shape`, whose sizes divide those of `x`.

    >>> x = tp.input("x", (4, 6), tp.F32)
    >>> tp.repeat_back(x, (2, 3)).shape
    (2, 3)
    """
    ne, rank = ne_of(shape, "repeat_back")
    return apply(REPEAT_BACK, x, ne=ne, rank=rank, name=name)
