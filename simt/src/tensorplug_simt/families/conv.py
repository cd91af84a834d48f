"""Convolutions, plain, by depth and transposed; windows as rows and back."""

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import Regions, per_element, regions_of
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.program import Kernel, Program, Region

CONV = "tensorplug_simt:kernels/conv.k"
IM2COL = "tensorplug_simt:kernels/im2col.k"


def _numbers(ints: str, longs: str = "") -> tuple[tuple[str, str], ...]:
    return (
        ("count", "uint"),
        *((name, "int") for name in ints.split()),
        *((name, "long") for name in longs.split()),
    )


_STEPS = "s0 s1 s2 p0 p1 p2 d0 d1 d2"
_FXY = ("filter", "x", "y")
FILTERED = Kernel(
    "filtered",
    CONV,
    _FXY,
    ("y",),
    _numbers(f"filters channels deep filter_deep x_deep {_STEPS}", "f_c f_o x_c x_n x_o"),
)
SPREAD = Kernel("spread", CONV, _FXY, ("y",), _numbers("s0 s1 p0 d0"))
WINDOWS = Kernel(
    "windows",
    IM2COL,
    ("x", "y"),
    ("y",),
    _numbers(f"deep x_deep filter_wide filter_high filter_deep {_STEPS}", "x_c x_n"),
)
GATHERED = Kernel(
    "gathered", IM2COL, ("grad", "y"), ("y",), _numbers("filter_wide filter_high s0 s1 p0 p1 d0 d1")
)
PIECES = Kernel("pieces", IM2COL, ("x", "y"), ("y",), _numbers("s0 p0 size"))


def _steps(node: Tensor, dims: int) -> dict[str, int]:
    """Strides, paddings and dilations of three dimensions, of which the node has `dims`."""
    neutral = {"s": 1, "p": 0, "d": 1}
    return {
        f"{letter}{dim}": _int(node, f"{letter}{dim}") if dim < dims else neutral[letter]
        for letter in "spd"
        for dim in range(3)
    }


def _int(node: Tensor, name: str) -> int:
    return int(number(node, name))


def _raised(tensor: Tensor, axis: int = 1) -> Region:
    """A signal as an image with one row: three dimensions with one of length 1 before `axis`."""
    (*ne, _), (*nb, _) = tensor.ne, tensor.nb
    ne.insert(axis, 1)
    nb.insert(axis, nb[axis])
    return Region(tensor, tensor.dtype, (*ne,), (*nb,))  # type: ignore[arg-type]  # four of each


def _launched(
    kernel: Kernel, regions: Regions, node: Tensor, facts: Facts, **numbers: int
) -> Program:
    need_types(node)
    return Program((per_element(kernel, regions, node.size, facts, numbers=numbers),))


def _filtered(
    node: Tensor, facts: Facts, counts: tuple[int, int], dims: int = 2, **strides: int
) -> Program:
    """Windows over `dims` dimensions, with `counts` of filters and of channels that they meet."""
    f, x = node.sources
    depths = {"deep": node, "filter_deep": f, "x_deep": x}
    return _launched(
        FILTERED,
        regions_of(FILTERED, node),
        node,
        facts,
        filters=counts[0],
        channels=counts[1],
        **{name: t.ne[2] if dims == 3 else 1 for name, t in depths.items()},
        **_steps(node, dims),
        **strides,
    )


@lowers("conv_2d")
def conv_2d(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements and channels of a window."""
    f, x = node.sources
    strides = {"f_c": f.nb[2], "f_o": f.nb[3], "x_c": x.nb[2], "x_n": x.nb[3], "x_o": 0}
    return _filtered(node, facts, (f.ne[3], f.ne[2]), **strides)


@lowers("conv_2d_dw")
def conv_2d_dw(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements of a window, each channel with a filter of its own."""
    f, x = node.sources
    strides = {"f_c": 0, "f_o": f.nb[3], "x_c": 0, "x_n": x.nb[3], "x_o": x.nb[2]}
    return _filtered(node, facts, (x.ne[2], 1), **strides)


@lowers("conv_3d")
def conv_3d(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements and channels of a window of a volume."""
    f, x = node.sources
    channels = _int(node, "n_channels")
    strides = {"f_c": f.nb[3], "f_o": f.nb[3] * channels}
    strides |= {"x_c": x.nb[3], "x_n": x.nb[3] * channels, "x_o": 0}
    return _filtered(node, facts, (_int(node, "n_channels_out"), channels), 3, **strides)


@lowers("conv_transpose_1d")
def conv_transpose_1d(node: Tensor, facts: Facts) -> Program:
    """Each element of the result from the elements of x that reach it."""
    f, x = node.sources
    regions = {"filter": _raised(f), "x": _raised(x), "y": _raised(node)}
    steps = {name: _int(node, name) for name in ("s0", "p0", "d0")}
    return _launched(SPREAD, regions, node, facts, s1=1, **steps)


@lowers("conv_transpose_2d")
def conv_transpose_2d(node: Tensor, facts: Facts) -> Program:
    """Each pixel of the result from the pixels of x that reach it."""
    steps = {name: _int(node, name) for name in ("s0", "s1")}
    return _launched(SPREAD, regions_of(SPREAD, node), node, facts, p0=0, d0=1, **steps)


@lowers("im2col")
def im2col(node: Tensor, facts: Facts) -> Program:
    """Each element of a row from the pixel that the window has there."""
    x = node.sources[1]
    if node.params["is_2d"]:
        return _windows(node, facts, 2, {"x": x, "y": node}, x_c=x.nb[2], x_n=x.nb[3])
    regions = {"x": _raised(x), "y": _raised(node, 2)}
    return _windows(node, facts, 1, regions, x_c=x.nb[1], x_n=x.nb[2])


@lowers("im2col_3d")
def im2col_3d(node: Tensor, facts: Facts) -> Program:
    """Each element of a row from the voxel that the window has there."""
    x, channels = node.sources[1], _int(node, "n_channels")
    strides = {"x_c": x.nb[3], "x_n": x.nb[3] * channels}
    deep = node.ne[3] // (x.ne[3] // channels)
    return _windows(node, facts, 3, {"x": x, "y": node}, deep, **strides)


def _windows(
    node: Tensor, facts: Facts, dims: int, regions: Regions, deep: int = 1, **strides: int
) -> Program:
    f, x = node.sources
    wide, high, depth = (*f.ne[:dims], 1, 1)[:3]
    sizes = {"filter_wide": wide, "filter_high": high, "filter_deep": depth}
    sizes |= {"deep": deep, "x_deep": x.ne[2] if dims == 3 else 1}
    return _launched(WINDOWS, regions, node, facts, **sizes, **_steps(node, dims), **strides)


@lowers("im2col_back")
def im2col_back(node: Tensor, facts: Facts) -> Program:
    """Each pixel from the windows that have it."""
    grad, f = node.sources
    flat = not node.params["is_2d"]
    steps = {n: v for n, v in _steps(node, 1 if flat else 2).items() if not n.endswith("2")}
    sizes = {"filter_wide": f.ne[0], "filter_high": 1 if flat else f.ne[1]}
    regions: Regions = {"grad": grad, "y": node}
    if flat:
        regions = {"grad": _raised(grad, 2), "y": _raised(node)}
    return _launched(GATHERED, regions, node, facts, **sizes, **steps)


@lowers("col2im_1d")
def col2im_1d(node: Tensor, facts: Facts) -> Program:
    """Each element from the pieces that cover it."""
    size = node.sources[0].ne[0] // _int(node, "oc")
    numbers = {"s0": _int(node, "s0"), "p0": _int(node, "p0"), "size": size}
    return _launched(PIECES, regions_of(PIECES, node), node, facts, **numbers)
