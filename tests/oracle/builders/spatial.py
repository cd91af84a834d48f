"""Convolutions, pooling, images, windows."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml, sizes

_PLACES = "i s0, i s1, i p0, i p1, i d0, i d1"

direct("conv_2d", "ggml_conv_2d_direct", _PLACES)
direct("conv_2d_dw", "ggml_conv_2d_dw_direct", _PLACES)
direct("conv_transpose_1d", arguments="i s0, i p0, i d0")
direct("conv_transpose_2d", "ggml_conv_transpose_2d_p0", "i s0")
direct("col2im_1d", arguments="i s0, i oc, i p0")
direct("pad_reflect_1d", arguments="i p0, i p1")
direct("timestep_embedding", arguments="i dim, i max_period")
direct("win_part", arguments="i w")
direct("win_unpart", arguments="i w0, i h0, i w")
direct("get_rel_pos", arguments="i qh, i kh")
direct("add_rel_pos")

IM2COL = ("s0", "s1", "p0", "p1", "d0", "d1")
IM2COL_3D = ("s0", "s1", "s2", "p0", "p1", "p2", "d0", "d1", "d2")


@builds("conv_3d")
def _conv_3d(ggml: Ggml, use: Use) -> int:
    names = (*IM2COL_3D, "n_channels", "n_batch", "n_channels_out")
    numbers = [use.params[name] for name in names]
    return ggml.build("ggml_conv_3d_direct", "tt" + "i" * len(names), *use.sources, *numbers)


@builds("im2col")
def _im2col(ggml: Ggml, use: Use) -> int:
    numbers = [use.params[name] for name in IM2COL]
    flat, to = use.params["is_2d"], use.node["type"]
    return ggml.build("ggml_im2col", "ttiiiiiibi", *use.sources, *numbers, flat, to)


@builds("im2col_back")
def _im2col_back(ggml: Ggml, use: Use) -> int:
    numbers = [use.params[name] for name in IM2COL]
    ne, flat = sizes(use.node["ne"]), use.params["is_2d"]
    return ggml.build("ggml_im2col_back", "tttiiiiiib", *use.sources, ne, *numbers, flat)


@builds("im2col_3d")
def _im2col_3d(ggml: Ggml, use: Use) -> int:
    numbers = [use.params[name] for name in IM2COL_3D]
    channels, to = use.params["n_channels"], use.node["type"]
    return ggml.build("ggml_im2col_3d", "ttliiiiiiiiii", *use.sources, channels, *numbers, to)


POOLS = {"max": 0, "avg": 1}
"""`enum ggml_op_pool`."""


@builds("pool_1d")
def _pool_1d(ggml: Ggml, use: Use) -> int:
    numbers = [use.params[name] for name in ("k0", "s0", "p0")]
    return ggml.build("ggml_pool_1d", "tiiii", *use.sources, POOLS[use.params["kind"]], *numbers)


@builds("pool_2d")
def _pool_2d(ggml: Ggml, use: Use) -> int:
    return _pooled(ggml, use)


@builds("pool_2d_back")
def _pool_2d_back(ggml: Ggml, use: Use) -> int:
    return _pooled(ggml, use)


def _pooled(ggml: Ggml, use: Use) -> int:
    numbers = [use.params[name] for name in ("k0", "k1", "s0", "s1", "p0", "p1")]
    signature = "t" * len(use.sources) + "iiiiiff"
    kind = POOLS[use.params["kind"]]
    return ggml.build(f"ggml_{use.op}", signature, *use.sources, kind, *numbers)


MODES = {"nearest": 0, "bilinear": 1, "bicubic": 2}
FLAGS = {"align_corners": 1 << 8, "antialias": 1 << 9}
"""`enum ggml_scale_mode` and `enum ggml_scale_flag`."""


@builds("upscale")
def _upscale(ggml: Ggml, use: Use) -> int:
    mode = MODES[use.params["mode"]] | sum(FLAGS[name] for name in FLAGS if use.params[name])
    return ggml.build("ggml_interpolate", "tllllu", *use.sources, *use.node["ne"], mode)


@builds("pad")
def _pad(ggml: Ggml, use: Use) -> int:
    name = "ggml_pad_ext_circular" if use.params["circular"] else "ggml_pad_ext"
    return ggml.build(name, "t" + "i" * 8, *use.sources, *use.params["pads"])


@builds("roll")
def _roll(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_roll", "tiiii", *use.sources, *use.params["shifts"])
