"""Sliding windows: their parameters, and the number of windows along each dimension."""

from collections.abc import Sequence
from typing import TypeVar

from tensorplug.errors import ShapeError
from tensorplug.ops.table import Call, Param

Number = TypeVar("Number", int, float)
Along = int | tuple[int, ...]
"""One number for all axes of a window, or one number for each axis in NumPy order."""


def window_params(dims: int) -> tuple[Param, ...]:
    """Stride `s0`, padding `p0` (zeros on both sides) and dilation `d0`, and so on per dimension.

    By default strides and dilations are 1, and paddings are 0.
    """
    return tuple(
        Param(f"{letter}{dim}", int, default=default)
        for letter, default in (("s", 1), ("p", 0), ("d", 1))
        for dim in range(dims)
    )


def window(
    where: str, dims: int, *, stride: Along = 1, padding: Along = 0, dilation: Along = 1
) -> dict[str, int]:
    """The parameters of `window_params` from arguments in NumPy order. Raises ShapeError."""
    return {
        **by_dim(where, "stride", "s", stride, dims),
        **by_dim(where, "padding", "p", padding, dims),
        **by_dim(where, "dilation", "d", dilation, dims),
    }


def by_dim(
    where: str, what: str, letter: str, value: Number | tuple[Number, ...], dims: int
) -> dict[str, Number]:
    """Parameters `letter0`, `letter1` in ggml's order from numbers in NumPy's."""
    values = value if isinstance(value, tuple) else (value,) * dims
    if len(values) != dims:
        raise ShapeError(
            f"{where}: {what}={value} has {len(values)} numbers for a window of {dims} axes; give "
            "one number for each axis, or one for all"
        )
    return {f"{letter}{dim}": n for dim, n in enumerate(reversed(values))}


def window_counts(call: Call, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The number of windows of `kernel` elements that fit along each dimension of `sizes`.

    Raises ShapeError if no window fits or a parameter is out of range.
    """
    return tuple(
        _window_count(call, dim, taps, size)
        for dim, (taps, size) in enumerate(zip(kernel, sizes, strict=True))
    )


def _window_count(call: Call, dim: int, taps: int, size: int) -> int:
    stride, pad, dilation = (call.int(f"{letter}{dim}") for letter in "spd")
    if stride < 1 or dilation < 1 or pad < 0:
        raise call.fail(
            f"s{dim} = {stride} and d{dim} = {dilation} must be positive, p{dim} = {pad} not "
            "negative"
        )
    span, room = dilation * (taps - 1) + 1, size + 2 * pad
    if taps < 1 or span > room:
        raise call.fail(
            f"a window of {span} does not fit into the {room} elements of dimension {dim}"
        )
    return (room - span) // stride + 1
