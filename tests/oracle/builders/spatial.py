"""Convolutions, pooling, images, windows."""

from oracle.builders.table import direct

_PLACES = "i s0, i s1, i p0, i p1, i d0, i d1"

direct("conv_2d", "ggml_conv_2d_direct", _PLACES)
direct("conv_2d_dw", "ggml_conv_2d_dw_direct", _PLACES)
direct("conv_transpose_1d", arguments="i s0, i p0, i d0")
direct("conv_transpose_2d", "ggml_conv_transpose_2d_p0", "i stride")
direct("col2im_1d", arguments="i s0, i oc, i p0")
direct("pad_reflect_1d", arguments="i p0, i p1")
direct("roll", arguments="i shift0, i shift1, i shift2, i shift3")
direct("timestep_embedding", arguments="i dim, i max_period")
direct("win_part", arguments="i w")
direct("win_unpart", arguments="i w0, i h0, i w")
direct("get_rel_pos", arguments="i qh, i kh")
direct("add_rel_pos")
