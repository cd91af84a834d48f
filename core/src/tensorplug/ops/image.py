"""Resizing, padding and rolling of images and signals; the embedding of times."""

from collections.abc import Sequence
from typing import Any

from tensorplug.dtypes import F32
from tensorplug.errors import ShapeError
from tensorplug.graph.tensor import MAX_RANK, Ne, Tensor, ne_of
from tensorplug.ops.axes import Axes, axes_of
from tensorplug.ops.rules import ONLY_F32, always
from tensorplug.ops.split import AXES, PARTIAL, Way, linear
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

MODES = ("nearest", "bilinear", "bicubic")


def _sizes(value: Any) -> Ne:
    a, b, c, d = (n if isinstance(n, int) else 0 for n in value)
    return a, b, c, d


def _resized(call: Call) -> Shape:
    ne = _sizes(call.params["ne"])
    if min(ne) < 1 or min(call["x"].ne) < 1:
        raise call.fail(f"cannot be resized to {ne}; sizes are positive")
    if call.params["mode"] not in MODES:
        raise call.fail(f"unknown mode {call.params['mode']!r}; modes are {', '.join(MODES)}")
    if call.params["antialias"] and call.params["mode"] != "bilinear":
        raise call.fail("antialias works only with mode bilinear")
    return ne, call.int("rank")


def _resized_parts(call: Call) -> list[Way]:
    x, ne = call["x"], _sizes(call.params["ne"])
    kept = [axis for axis in (2, 3) if x.ne[axis] == ne[axis] > 1]
    return [*(Way({"x": axis}, axis) for axis in kept), Way({"x": PARTIAL}, PARTIAL)]


UPSCALE = register_op(
    Op(
        "upscale",
        sources=(Source("x", ONLY_F32),),
        params=(
            Param("ne", tuple, required=True),
            Param("rank", int, required=True),
            Param("mode", str, default="nearest"),
            Param("align_corners", bool, default=False),
            Param("antialias", bool, default=False),
        ),
        shape=_resized,
        dtype=always(F32),
        split=_resized_parts,
        formula="y = x resized: interpolated along dimensions 0 and 1, nearest along 2 and 3",
        origin="ggml; cubic convolution with a = -0.75, Keys 1981, doi:10.1109/TASSP.1981.1163711",
    )
)


def _padded(call: Call) -> Shape:
    x, pads = call["x"], call.params["pads"]
    assert isinstance(pads, tuple)
    if len(pads) != 8 or not all(isinstance(n, int) and n >= 0 for n in pads):
        raise call.fail(f"pads = {pads} must be eight counts: left and right of each dimension")
    counts = [n for n in pads if isinstance(n, int)]
    ne = [x.ne[i] + counts[2 * i] + counts[2 * i + 1] for i in AXES]
    if call.params["circular"] and any(n == 0 for n in x.ne):
        raise call.fail("x is empty, so circular padding has no elements to repeat")
    rank = max([x.rank, *(i + 1 for i in AXES if ne[i] > 1)])
    return (ne[0], ne[1], ne[2], ne[3]), rank


def _unpadded_parts(call: Call) -> list[Way]:
    pads = call.params["pads"]
    assert isinstance(pads, tuple)
    free = [axis for axis in AXES if pads[2 * axis : 2 * axis + 2] == (0, 0)]
    kept = [Way({"x": axis}, axis) for axis in free if call["x"].ne[axis] > 1]
    return [*kept, Way({"x": PARTIAL}, PARTIAL)]


PAD = register_op(
    Op(
        "pad",
        sources=(Source("x", ONLY_F32),),
        params=(Param("pads", tuple, required=True), Param("circular", bool, default=False)),
        shape=_padded,
        dtype=always(F32),
        split=_unpadded_parts,
        formula="y = x with zeros around it, or with elements from its opposite end",
    )
)


def _reflected(call: Call) -> Shape:
    x, left, right = call["x"], call.int("p0"), call.int("p1")
    if not (0 <= left < x.ne[0] and 0 <= right < x.ne[0]):
        raise call.fail(f"p0 = {left} and p1 = {right} must be less than ne[0], {x.ne[0]}")
    return (x.ne[0] + left + right, x.ne[1], x.ne[2], x.ne[3]), x.rank


PAD_REFLECT_1D = register_op(
    Op(
        "pad_reflect_1d",
        sources=(Source("x", ONLY_F32),),
        params=(Param("p0", int, required=True), Param("p1", int, required=True)),
        shape=_reflected,
        dtype=always(F32),
        split=lambda call: [
            *(Way({"x": axis}, axis) for axis in AXES[1:] if call["x"].ne[axis] > 1),
            *linear("x")(call),
        ],
        formula="y = x extended by its mirror images; the end elements are not doubled",
    )
)


def _rolled_parts(call: Call) -> list[Way]:
    shifts = call.params["shifts"]
    assert isinstance(shifts, tuple)
    still = [axis for axis in AXES if shifts[axis] == 0 and call["x"].ne[axis] > 1]
    return [*(Way({"x": axis}, axis) for axis in still), Way({"x": PARTIAL}, PARTIAL)]


def _rolled(call: Call) -> Shape:
    x, shifts = call["x"], call.params["shifts"]
    assert isinstance(shifts, tuple)
    if len(shifts) != 4 or not all(isinstance(n, int) for n in shifts):
        raise call.fail(f"shifts = {shifts} must be four integers, one for each dimension")
    for axis, shift in enumerate(shifts):
        assert isinstance(shift, int)
        if x.ne[axis] and abs(shift) >= x.ne[axis]:
            raise call.fail(f"a shift of {shift} is not less than ne[{axis}], {x.ne[axis]}")
    return x.ne, x.rank


ROLL = register_op(
    Op(
        "roll",
        sources=(Source("x", ONLY_F32),),
        params=(Param("shifts", tuple, required=True),),
        shape=_rolled,
        dtype=always(F32),
        split=_rolled_parts,
        formula="y[i] = x[(i - shift) mod n] along each dimension of n elements",
    )
)


def _embedded(call: Call) -> Shape:
    x, dim = call["x"], call.int("dim")
    if dim < 1 or call.int("max_period") < 1:
        raise call.fail(f"dim = {dim} and max_period = {call.int('max_period')} must be positive")
    if x.ne[1:] != (1, 1, 1):
        raise call.fail("x must be a vector of times")
    return (dim, x.ne[0], 1, 1), 2


TIMESTEP_EMBEDDING = register_op(
    Op(
        "timestep_embedding",
        sources=(Source("x", ONLY_F32),),
        params=(Param("dim", int, required=True), Param("max_period", int, default=10000)),
        shape=_embedded,
        dtype=always(F32),
        split=lambda _call: (Way({"x": 0}, 1),),
        formula="y[j, i] = cos(x[i] * f[j]), y[j + n, i] = sin(x[i] * f[j]), "
        "f[j] = max_period**(-j / n), n = dim // 2",
        origin="Ho et al. 2020, arXiv:2006.11239",
    )
)


def upscale(
    x: Tensor,
    shape: tuple[int, ...],
    *,
    mode: str = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
    name: str = "",
) -> Tensor:
    """Resize f32 `x` to `shape` (NumPy order), up or down.

    `mode` is nearest, bilinear or bicubic along the two fastest dimensions; along the others the
    nearest element is taken. `align_corners` aligns the centres of the corner elements; by default
    the outer edges of the corner elements are aligned. `antialias` widens the bilinear filter when
    the size shrinks. Raises ShapeError.

    >>> x = tp.input("x", (1, 3, 8, 8), tp.F32)
    >>> tp.upscale(x, (1, 3, 16, 16), mode="bilinear").shape
    (1, 3, 16, 16)
    """
    ne, rank = ne_of(shape, "upscale")
    return apply(
        UPSCALE,
        x,
        ne=ne,
        rank=rank,
        mode=mode,
        align_corners=align_corners,
        antialias=antialias,
        name=name,
    )


def pad(
    x: Tensor, pads: Sequence[tuple[int, int]], *, circular: bool = False, name: str = ""
) -> Tensor:
    """Pad f32 `x` by `pads`, one pair (before, after) for each axis, as in `numpy.pad`.

    The padding is zeros; with `circular` it repeats `x` periodically. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.pad(x, [(0, 0), (1, 2)]).shape
    (2, 6)
    """
    pairs = tuple(tuple(pair) for pair in pads)
    if len(pairs) != x.rank or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"pad: pads {pairs} of {x}; takes {x.rank} pairs (before, after), one for each axis"
        )
    filled = [n for pair in reversed(pairs) for n in pair] + [0] * (8 - 2 * x.rank)
    return apply(PAD, x, pads=tuple(filled), circular=circular, name=name)


def pad_reflect_1d(x: Tensor, p0: int, p1: int, *, name: str = "") -> Tensor:
    """Pad the last axis of f32 `x` by `p0` and `p1` elements that mirror its ends.

    `p0` and `p1` must be less than the size of the axis. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.pad_reflect_1d(x, 1, 2).shape
    (2, 6)
    """
    return apply(PAD_REFLECT_1D, x, p0=p0, p1=p1, name=name)


def roll(x: Tensor, shifts: Axes, axis: Axes, *, name: str = "") -> Tensor:
    """Shift f32 `x` cyclically along each `axis`, as `numpy.roll`. Raises ShapeError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.roll(x, 1, axis=-1).shape
    (2, 3)
    """
    axes = axes_of(x, axis, "roll")
    given = (shifts,) * len(axes) if isinstance(shifts, int) else tuple(shifts)
    if len(given) != len(axes):
        raise ShapeError(
            f"roll: {len(given)} shifts for {len(axes)} axes of {x}; give one for each"
        )
    by_dim = [0] * MAX_RANK
    for shift, each in zip(given, axes, strict=True):
        by_dim[x.rank - 1 - each] = shift % max(x.shape[each], 1)
    return apply(ROLL, x, shifts=tuple(by_dim), name=name)


def timestep_embedding(x: Tensor, dim: int, *, max_period: int = 10000, name: str = "") -> Tensor:
    """Embed f32 times `x` [n] as cosines and sines: f32 [dim, n] in `ne` order.

    The last row of an odd `dim` is 0. Raises ShapeError.

    >>> x = tp.input("x", (2,), tp.F32)
    >>> tp.timestep_embedding(x, 320).shape
    (2, 320)
    """
    return apply(TIMESTEP_EMBEDDING, x, dim=dim, max_period=max_period, name=name)
