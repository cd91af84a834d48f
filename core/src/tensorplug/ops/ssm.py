"""State space models (Mamba): the convolution over time, and the selective scan."""

from tensorplug.dtypes import F32
from tensorplug.ops.rules import ONLY_F32, always
from tensorplug.ops.split import PARTIAL, Way, ways
from tensorplug.ops.table import Call, Op, Shape, Source, apply, register_op
from tensorplug.tensor import Tensor


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


def ssm_conv(x: Tensor, kernel: Tensor, *, name: str = "") -> Tensor:
    """Convolve each channel of `x` over time, looking back.

    `x` is f32 [d - 1 + tokens, channels, sequences], the last d - 1 steps of the past in front;
    `kernel` is f32 [d, channels]. The result is [channels, tokens, sequences]: time and channels
    have changed places. Raises ShapeError.
    """
    return apply(SSM_CONV, x, kernel, name=name)
