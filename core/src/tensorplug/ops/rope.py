"""Rotary position embedding."""

from collections.abc import Iterable

from tensorplug.dtypes import F16, F32, I32
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import ONLY_F32, same_shape_as, same_type_as
from tensorplug.ops.split import Way, aligned
from tensorplug.ops.table import Call, Op, Param, Source, apply, register_op

MODES = ("normal", "neox", "mrope", "imrope", "vision")
"""The modes of `rope`: in `normal` neighbouring elements are a pair; in the others element i of the
first half of the rotated part and element i of the second half are a pair."""


def _fits(call: Call) -> None:
    x, positions, factors = call["x"], call["positions"], call.get("factors")
    dims, offset, mode = call.int("dims"), call.int("offset"), call.params["mode"]
    if mode not in MODES:
        raise call.fail(f"unknown mode {mode!r}; modes are {', '.join(MODES)}")
    if dims % 2 or not 0 < dims <= x.ne[0]:
        raise call.fail(f"dims = {dims} is not even, positive and at most ne[0] of x")
    if not 0 <= offset <= x.ne[0] - dims:
        raise call.fail(
            f"dims {offset} to {offset + dims} are not among the {x.ne[0]} elements of a head; "
            f"offset must be 0 to {x.ne[0] - dims}"
        )
    if mode == "vision" and (dims * 2 != x.ne[0] or offset):
        raise call.fail(
            f"mode vision rotates whole heads: dims = {dims} is not half of {x.ne[0]}, or offset = "
            f"{offset} is not 0"
        )
    sectioned = mode not in MODES[:2]
    if positions.ne != (x.ne[2] * (4 if sectioned else 1), 1, 1, 1):
        raise call.fail(
            f"positions must be a vector of {4 if sectioned else 1} for each of ne[2] of x"
        )
    if sectioned:
        _check_sections(call)
    pairs = dims if mode == "vision" else dims // 2
    if factors is not None and factors.ne[0] < pairs:
        raise call.fail(f"factors must have at least {pairs} elements")
    if not call.number("base") > 0:
        raise call.fail(f"base = {call.number('base'):g}; it must be above 0")
    if call.params["ext_factor"]:
        _check_yarn(call)


def _check_yarn(call: Call) -> None:
    """Refuse what has no logarithm in the formula of YaRN."""
    if call.int("original_context") <= 0:
        raise call.fail("ext_factor needs original_context, the context length in training")
    if call.params["base"] == 1:
        raise call.fail("ext_factor needs a base other than 1, which turns all pairs alike")
    for name in ("scale", "beta_fast", "beta_slow"):
        if not call.number(name) > 0:
            raise call.fail(f"ext_factor needs {name} above 0, got {call.number(name):g}")


def _check_sections(call: Call) -> None:
    sections = call.params["sections"]
    assert isinstance(sections, tuple)
    counts = [n for n in sections if isinstance(n, int) and n >= 0]
    if not 1 <= len(counts) == len(sections) <= 4 or not sum(counts):
        raise call.fail(
            f"mode {call.params['mode']} needs sections: up to four counts of pairs, not {sections}"
        )


def _parts(call: Call) -> Iterable[Way]:
    yield from aligned("x", axes=(1, 3))(call)
    # All positions of one kind come before those of the next kind, so the positions of a range of
    # tokens are not a slice.
    if call.params["mode"] in MODES[:2]:
        yield Way({"x": 2, "positions": 0}, 2)


ROPE = register_op(
    Op(
        "rope",
        sources=(
            Source("x", frozenset({F32, F16})),
            Source("positions", frozenset({I32})),
            Source("factors", ONLY_F32, optional=True),
        ),
        params=(
            Param("dims", int, required=True),
            Param("mode", str, default="normal"),
            Param("base", float, default=10000.0),
            Param("scale", float, default=1.0),
            Param("original_context", int, default=0),
            Param("ext_factor", float, default=0.0),
            Param("attn_factor", float, default=1.0),
            Param("beta_fast", float, default=32.0),
            Param("beta_slow", float, default=1.0),
            Param("sections", tuple, default=()),
            Param("offset", int, default=0),
        ),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        check=(_fits,),
        in_place=("x",),
        split=_parts,
        formula="pairs i of dims elements from offset turn by position * scale * base**(-2i/dims)",
        origin="Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (YaRN)",
    )
)


def rope(
    x: Tensor,
    positions: Tensor,
    factors: Tensor | None = None,
    *,
    dims: int,
    mode: str = "normal",
    base: float = 10000.0,
    scale: float = 1.0,
    original_context: int = 0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    sections: tuple[int, ...] = (),
    offset: int = 0,
    name: str = "",
) -> Tensor:
    """Rotate pairs of elements of `x` [head size, heads, tokens, batch] by angles of the position.

    `x` is f32 or f16; elements `offset` to `offset + dims` of each head are rotated, the others
    copied. `positions` is i32
    [tokens]; for mrope, imrope and vision it has four positions for each token, [4 * tokens], and
    `sections` gives the number of pairs for each kind of position. `factors` [dims / 2] divides
    the frequencies. `ext_factor`, `attn_factor`, `beta_fast`, `beta_slow` and `original_context`
    are parameters of YaRN. Raises ShapeError.

    >>> x = tp.input("x", (5, 8, 64), tp.F32)
    >>> positions = tp.input("positions", (5,), tp.I32)
    >>> tp.rope(x, positions, dims=64).shape
    (5, 8, 64)
    """
    return apply(
        ROPE,
        x,
        positions,
        factors,
        dims=dims,
        mode=mode,
        base=float(base),
        scale=float(scale),
        original_context=original_context,
        ext_factor=float(ext_factor),
        attn_factor=float(attn_factor),
        beta_fast=float(beta_fast),
        beta_slow=float(beta_slow),
        sections=tuple(sections),
        offset=offset,
        name=name,
    )
