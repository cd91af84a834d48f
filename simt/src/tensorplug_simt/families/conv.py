"""Convolutions, plain, by depth and transposed; windows as rows and back."""

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import lowers, need_types
from tensorplug_simt.program import Kernel, Program, Region

CONV = "tensorplug_simt:kernels/conv.k"
IM2COL = "tensorplug_simt:kernels/im2col.k"
DIMENSIONS = ("wide", "high", "deep")

_STEPS = tuple((f"{letter}{dim}", "int") for letter in "spd" for dim in range(3))
_SIZES = tuple((f"{what}_{dim}", "int") for what in ("filter", "x") for dim in DIMENSIONS)
_X_STRIDES = tuple((f"x_{axis}", "long") for axis in "ijlcn")

FILTERED = Kernel(
    "filtered",
    CONV,
    ("filter", "x", "y"),
    ("y",),
    (
        ("count", "uint"),
        *((dim, "int") for dim in DIMENSIONS),
        ("filters", "int"),
        ("channels", "int"),
        *_SIZES,
        *_STEPS,
        *((f"f_{axis}", "long") for axis in "ijlco"),
        *_X_STRIDES,
        ("x_o", "long"),
    ),
)
SPREAD_SIGNAL = Kernel(
    "spread_signal",
    CONV,
    ("filter", "x", "y"),
    ("y",),
    (("count", "uint"), ("s0", "int"), ("p0", "int"), ("d0", "int")),
)
SPREAD_IMAGE = Kernel(
    "spread_image",
    CONV,
    ("filter", "x", "y"),
    ("y",),
    (("count", "uint"), ("s0", "int"), ("s1", "int")),
)
WINDOWS = Kernel(
    "windows",
    IM2COL,
    ("x", "y"),
    ("y",),
    (("count", "uint"), ("deep", "int"), *_SIZES, *_STEPS, *_X_STRIDES),
)
GATHERED = Kernel(
    "gathered",
    IM2COL,
    ("grad", "y"),
    ("y",),
    (
        ("count", "uint"),
        *((name, "int") for name in ("wide", "high", "x_wide", "x_high", "channels")),
        *((name, "int") for name in ("filter_wide", "filter_high")),
        *((f"{letter}{dim}", "int") for letter in "spd" for dim in range(2)),
        *((f"g_{axis}", "long") for axis in "ruvn"),
    ),
)
PIECES = Kernel(
    "pieces",
    IM2COL,
    ("x", "y"),
    ("y",),
    (("count", "uint"), ("s0", "int"), ("p0", "int"), ("size", "int")),
)


def _steps(node: Tensor, dims: int) -> dict[str, int]:
    """Strides, paddings and dilations of three dimensions, of which the node has `dims`."""
    neutral = {"s": 1, "p": 0, "d": 1}
    return {
        f"{letter}{dim}": int(str(node.params[f"{letter}{dim}"])) if dim < dims else neutral[letter]
        for letter in "spd"
        for dim in range(3)
    }


def _walk(node: Tensor, dims: int) -> dict[str, int]:
    """Sizes of a filter and of `x`, and the steps of the filter over `x`."""
    f, x = node.sources
    return {**_sizes("filter", f.ne[:dims]), **_sizes("x", x.ne[:dims]), **_steps(node, dims)}


def _sizes(what: str, ne: tuple[int, ...]) -> dict[str, int]:
    wide, high, deep = (*ne, 1, 1)[:3]
    return {f"{what}_wide": wide, f"{what}_high": high, f"{what}_deep": deep}


def _strides(what: str, **nb: int) -> dict[str, int]:
    return {f"{what}_{axis}": stride for axis, stride in nb.items()}


@lowers("conv_2d")
def conv_2d(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements and channels of a window."""
    need_types(node)
    f, x = node.sources
    filters = _strides("f", i=f.nb[0], j=f.nb[1], l=0, c=f.nb[2], o=f.nb[3])
    pixels = _strides("x", i=x.nb[0], j=x.nb[1], l=0, c=x.nb[2], n=x.nb[3], o=0)
    return _filtered(node, facts, 2, (f.ne[3], f.ne[2]), {**filters, **pixels})


@lowers("conv_2d_dw")
def conv_2d_dw(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements of a window, each channel with a filter of its own."""
    need_types(node)
    f, x = node.sources
    filters = _strides("f", i=f.nb[0], j=f.nb[1], l=0, c=0, o=f.nb[3])
    pixels = _strides("x", i=x.nb[0], j=x.nb[1], l=0, c=0, n=x.nb[3], o=x.nb[2])
    return _filtered(node, facts, 2, (x.ne[2], 1), {**filters, **pixels})


@lowers("conv_3d")
def conv_3d(node: Tensor, facts: Facts) -> Program:
    """Sums over the elements and channels of a window of a volume."""
    need_types(node)
    f, x = node.sources
    channels = int(str(node.params["n_channels"]))
    filters = _strides("f", i=f.nb[0], j=f.nb[1], l=f.nb[2], c=f.nb[3], o=f.nb[3] * channels)
    pixels = _strides("x", i=x.nb[0], j=x.nb[1], l=x.nb[2], c=x.nb[3], n=x.nb[3] * channels, o=0)
    counts = (int(str(node.params["n_channels_out"])), channels)
    return _filtered(node, facts, 3, counts, {**filters, **pixels})


def _filtered(
    node: Tensor, facts: Facts, dims: int, counts: tuple[int, int], strides: dict[str, int]
) -> Program:
    f, x = node.sources
    wide, high, deep = (*node.ne[:dims], 1)[:3]
    launch = per_element(
        FILTERED,
        {"filter": f, "x": x, "y": node},
        node.size,
        facts,
        wide=wide,
        high=high,
        deep=deep,
        filters=counts[0],
        channels=counts[1],
        numbers=_walk(node, dims) | strides,
    )
    return Program((launch,))


@lowers("conv_transpose_1d")
def conv_transpose_1d(node: Tensor, facts: Facts) -> Program:
    """Each element of the result from the elements of x that reach it."""
    need_types(node)
    f, x = node.sources
    steps = {name: n for name, n in _steps(node, 1).items() if name.endswith("0")}
    places = {"filter": f, "x": x, "y": node}
    return Program((per_element(SPREAD_SIGNAL, places, node.size, facts, numbers=steps),))


@lowers("conv_transpose_2d")
def conv_transpose_2d(node: Tensor, facts: Facts) -> Program:
    """Each pixel of the result from the pixels of x that reach it."""
    need_types(node)
    f, x = node.sources
    steps = {name: int(str(node.params[name])) for name in ("s0", "s1")}
    places = {"filter": f, "x": x, "y": node}
    return Program((per_element(SPREAD_IMAGE, places, node.size, facts, numbers=steps),))


@lowers("im2col")
def im2col(node: Tensor, facts: Facts) -> Program:
    """Each element of a row from the pixel that the window has there."""
    need_types(node)
    _, x = node.sources
    if node.params["is_2d"]:
        y = Region(node, node.dtype, node.ne, node.nb)
        strides = _strides("x", i=x.nb[0], j=x.nb[1], l=0, c=x.nb[2], n=x.nb[3])
        return _windows(node, facts, 2, y, strides, 1)
    a, b, c, _ = node.ne
    y = Region(node, node.dtype, (a, b, 1, c), (*node.nb[:2], node.nb[2], node.nb[2]))
    strides = _strides("x", i=x.nb[0], j=0, l=0, c=x.nb[1], n=x.nb[2])
    return _windows(node, facts, 1, y, strides, 1)


@lowers("im2col_3d")
def im2col_3d(node: Tensor, facts: Facts) -> Program:
    """Each element of a row from the voxel that the window has there."""
    need_types(node)
    _, x = node.sources
    channels = int(str(node.params["n_channels"]))
    y = Region(node, node.dtype, node.ne, node.nb)
    strides = _strides("x", i=x.nb[0], j=x.nb[1], l=x.nb[2], c=x.nb[3], n=x.nb[3] * channels)
    return _windows(node, facts, 3, y, strides, node.ne[3] // (x.ne[3] // channels))


def _windows(
    node: Tensor, facts: Facts, dims: int, y: Region, strides: dict[str, int], deep: int
) -> Program:
    x = node.sources[1]
    launch = per_element(
        WINDOWS,
        {"x": x, "y": y},
        node.size,
        facts,
        deep=deep,
        numbers=_walk(node, dims) | strides,
    )
    return Program((launch,))


@lowers("im2col_back")
def im2col_back(node: Tensor, facts: Facts) -> Program:
    """Each pixel from the windows that have it."""
    need_types(node)
    grad, f = node.sources
    dims = 2 if node.params["is_2d"] else 1
    steps = {n: v for n, v in _steps(node, dims).items() if not n.endswith("2")}
    sizes = {**_sizes("filter", f.ne[:dims]), **_sizes("x", node.ne[:dims])}
    del sizes["filter_deep"], sizes["x_deep"]
    rows = {"g_r": grad.nb[0], "g_u": grad.nb[1]}
    rows |= {"g_v": grad.nb[2], "g_n": grad.nb[3]} if dims == 2 else {"g_v": 0, "g_n": grad.nb[2]}
    launch = per_element(
        GATHERED,
        {"grad": grad, "y": node},
        node.size,
        facts,
        wide=grad.ne[1],
        high=grad.ne[2] if dims == 2 else 1,
        channels=node.ne[dims],
        numbers={**sizes, **steps, **rows},
    )
    return Program((launch,))


@lowers("col2im_1d")
def col2im_1d(node: Tensor, facts: Facts) -> Program:
    """Each element from the pieces that cover it."""
    need_types(node)
    (x,) = node.sources
    step, channels, crop = (int(str(node.params[name])) for name in ("s0", "oc", "p0"))
    size = x.ne[0] // channels
    launch = per_element(PIECES, {"x": x, "y": node}, node.size, facts, s0=step, p0=crop, size=size)
    return Program((launch,))
