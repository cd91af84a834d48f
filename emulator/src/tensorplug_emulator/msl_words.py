"""Words of Metal Shading Language, for the rules that texts of it keep.

Source: Metal Shading Language Specification, sections 1.5, 2, 4, 5 and 6.
"""

from collections.abc import Mapping

SIZES: Mapping[str, int] = {
    **dict.fromkeys(("char", "uchar", "bool", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("half", "bfloat", "short", "ushort", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("float", "int", "uint", "unsigned", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("long", "ulong", "int64_t", "uint64_t", "size_t"), 8),
}
"""Bytes of the plain types; vectors of three take the room of four."""

SPACES = ("device", "constant", "thread", "threadgroup")
FORBIDDEN: Mapping[str, str] = {
    "double": "there are no numbers of 64 bits with a fraction",
    "goto": "there is no goto",
    **dict.fromkeys(("try", "throw", "catch"), "there are no exceptions"),
    **dict.fromkeys(("new", "delete"), "there is no memory to ask for"),
    **dict.fromkeys(("virtual", "dynamic_cast", "typeid"), "no types at run time"),
    **dict.fromkeys(("thread_local", "register", "asm", "wchar_t"), "C++ that is left out"),
    **dict.fromkeys(("__global", "__local", "__shared__", "__device__"), "another language"),
}
"""Words that must not occur in a text, and why."""

KEYWORDS = frozenset((*SPACES, "kernel", "vertex", "fragment", "half", "bfloat", "sampler"))
"""Words that a text must not use as names, besides those of C++ and the types above."""

ATTRIBUTES = frozenset(
    (
        "buffer",
        "thread_position_in_grid",
        "threadgroup_position_in_grid",
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
    )
)
"""What parameters of our kernels may be."""

_METALS = """
abs absdiff acos acosh addsat all any asin asinh atan atan2 atanh ceil clamp clz copysign cos
cosh cospi cross ctz degrees determinant distance distance_squared divide dot exp exp10 exp2
extract_bits fabs faceforward fast fdim floor fma fmax fmax3 fmedian3 fmin fmin3 fmod fract
frexp hadd ilogb insert_bits isfinite isinf isnan isnormal isordered isunordered ldexp length
length_squared log log10 log2 mad24 madhi madsat max max3 median3 min min3 mix modf mul24 mulhi
nextafter norm normalize not popcount pow powr precise radians reflect refract reverse_bits
rhadd rint rotate round rsqrt saturate select sign signbit sin sincos sinh sinpi smoothstep sqrt
step subsat tan tanh tanpi transpose trunc
"""
METALS = frozenset(_METALS.split())
"""Functions of the standard library; calls of others of the same name could mean either."""
