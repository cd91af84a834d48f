"""Ops that call a Python function on arrays: only devices that work in host memory have them."""

from collections.abc import Callable, Sequence
from typing import Any

from tensorplug.dtypes import DType
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import GraphError
from tensorplug.ops.rules import PLAIN, same_shape_as, same_type_as
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op
from tensorplug.tensor import Tensor, ne_of

MOST_SOURCES = 10
Function = Callable[..., Any]
"""Called with the array of the result, to be filled, and those of the sources, NumPy order."""

_FUNCTION = Param("function", Callable, required=True)  # type: ignore[arg-type]  # an ABC


def _map(count: int) -> Op:
    names = ("a", "b", "c")[:count]
    return register_op(
        Op(
            f"map_custom{count}",
            sources=tuple(Source(name, PLAIN) for name in names),
            params=(_FUNCTION,),
            shape=same_shape_as("a"),
            dtype=same_type_as("a"),
            formula=f"function(y, {', '.join(names)}) fills y, which is like a",
        )
    )


MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3 = _map(1), _map(2), _map(3)


def _wanted(call: Call) -> Shape:
    ne = call.params["ne"]
    assert isinstance(ne, tuple)
    a, b, c, d = (n if isinstance(n, int) else 0 for n in ne)
    return (a, b, c, d), call.int("rank")


CUSTOM = register_op(
    Op(
        "custom",
        sources=tuple(Source(f"s{i}", PLAIN, optional=True) for i in range(MOST_SOURCES)),
        params=(
            _FUNCTION,
            Param("ne", tuple, required=True),
            Param("rank", int, required=True),
            Param("to", str, default="f32"),
        ),
        shape=_wanted,
        dtype=lambda call: dtype_of(str(call.params["to"])),
        formula="function(y, s0, s1, ...) fills y, of the sizes ne and the type `to`",
    )
)


def map_custom1(a: Tensor, function: Function, *, name: str = "") -> Tensor:
    """Call `function(y, a)` to fill a result like `a`.

    Arrays have the NumPy shapes of the tensors; bf16 comes as uint16. What the function raises
    comes out as GraphError, with the node's name, where the graph runs.
    """
    return apply(MAP_CUSTOM1, a, function=function, name=name)


def map_custom2(a: Tensor, b: Tensor, function: Function, *, name: str = "") -> Tensor:
    """Call `function(y, a, b)` to fill a result like `a`."""
    return apply(MAP_CUSTOM2, a, b, function=function, name=name)


def map_custom3(a: Tensor, b: Tensor, c: Tensor, function: Function, *, name: str = "") -> Tensor:
    """Call `function(y, a, b, c)` to fill a result like `a`."""
    return apply(MAP_CUSTOM3, a, b, c, function=function, name=name)


def custom(
    sources: Sequence[Tensor],
    function: Function,
    shape: tuple[int, ...],
    to: DType | str = "f32",
    *,
    name: str = "",
) -> Tensor:
    """Call `function(y, *sources)` to fill a result of `shape` (NumPy order) and the type `to`."""
    kind = dtype_of(to)
    if kind.is_block or len(sources) > MOST_SOURCES:
        raise GraphError(
            f"custom: a result of {kind.name} from {len(sources)} sources; takes at most "
            f"{MOST_SOURCES} sources and gives no block types"
        )
    ne, rank = ne_of(shape, "custom")
    return apply(CUSTOM, *sources, function=function, ne=ne, rank=rank, to=kind.name, name=name)
