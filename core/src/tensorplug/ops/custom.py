"""Ops that call a Python function on arrays. Only devices that compute in host memory have them."""

from collections.abc import Callable, Sequence
from typing import Any

from tensorplug.dtypes import DTypeLike
from tensorplug.dtypes import dtype as dtype_of
from tensorplug.errors import GraphError, OptionError
from tensorplug.graph.tensor import Array, Tensor, Value, ne_of
from tensorplug.ops.rules import ANY, same_shape_as, same_type_as
from tensorplug.ops.table import Call, Op, Param, Shape, Source, apply, register_op

MOST_SOURCES = 10
ALL_THREADS = -1
"""A value of `n_tasks`: one call for each thread of the device."""
Function = Callable[..., Any]
"""A function that fills the array of the result (its first argument) from those of the sources."""

_PARAMS = (
    Param("function", Callable, required=True),  # type: ignore[arg-type]  # an ABC
    Param("n_tasks", int, default=0),
)


def _callable(call: Call) -> None:
    function, tasks = call.params["function"], call.int("n_tasks")
    try:
        hash(function)
    except TypeError as error:
        raise OptionError(
            f"{call.op.name}: function {function!r} is not hashable, so graphs that call it cannot "
            "be compared; pass a method of it, or a lambda"
        ) from error
    if tasks < ALL_THREADS:
        raise OptionError(
            f"{call.op.name}: n_tasks = {tasks}; takes a number of calls, {ALL_THREADS} for one "
            "call per thread, or 0 for one call without `ith` and `nth`"
        )


def _map(count: int) -> Op:
    names = ("a", "b", "c")[:count]
    return register_op(
        Op(
            f"map_custom{count}",
            sources=tuple(Source(name, ANY) for name in names),
            params=_PARAMS,
            shape=same_shape_as("a"),
            dtype=same_type_as("a"),
            check=(_callable,),
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
        sources=tuple(Source(f"s{i}", ANY, optional=True) for i in range(MOST_SOURCES)),
        params=(
            *_PARAMS,
            Param("ne", tuple, required=True),
            Param("rank", int, required=True),
            Param("to", str, default="f32"),
        ),
        shape=_wanted,
        dtype=lambda call: dtype_of(str(call.params["to"])),
        check=(_callable,),
        formula="function(y, s0, s1, ...) fills y, of the sizes ne and the type `to`",
    )
)

CALLING = frozenset(op.name for op in (MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3, CUSTOM))
"""Names of the ops that call a function of the user."""


def call_function(node: Tensor, result: Array, sources: Sequence[Array], **part: int) -> None:
    """Let the function of `node` fill `result`. Devices and the reference use this function.

    `result` and `sources` have four dimensions; the function gets views with the shapes of the
    tensors, and the sources are read-only. `part` is empty, or has `ith` and `nth`. Raises
    GraphError from any exception of the function.
    """
    function = node.params["function"]
    assert callable(function)
    given = [_seen(array, tensor) for array, tensor in zip(sources, node.sources, strict=True)]
    for array in given:
        array.flags.writeable = False
    try:
        function(_seen(result, node), *given, **part)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise GraphError(
            f"{node}: its function {name} raised {type(error).__name__}: {error}"
        ) from error


def _seen(array: Array, tensor: Tensor) -> Array:
    """A view with the shape of `tensor`; the last dimension of block types counts bytes."""
    lost = 4 - tensor.rank
    return array.reshape(array.shape[lost:])


def map_custom1(a: Tensor, function: Function, *, n_tasks: int = 0, name: str = "") -> Tensor:
    """Call `function(y, a)` to fill a result like `a`.

    Arrays have the NumPy shapes of the tensors; bf16 comes as uint16, block types as bytes, and
    sources are read-only. With `n_tasks` other than 0 the function is called `n_tasks` times in
    parallel (-1: once per thread of the device); each call gets its number `ith` and the number of
    calls `nth` as keywords, and computes its part of the result. An exception of the function makes
    the run raise GraphError with the name of the node. The function must be hashable. A graph that
    calls a function cannot be saved.

    >>> def doubled(y, x):
    ...     y[...] = 2 * x
    >>> tp.map_custom1(tp.input("x", (2, 3), tp.F32), doubled).shape
    (2, 3)
    """
    return apply(MAP_CUSTOM1, a, function=function, n_tasks=n_tasks, name=name)


def map_custom2(
    a: Tensor, b: Tensor, function: Function, *, n_tasks: int = 0, name: str = ""
) -> Tensor:
    """Call `function(y, a, b)` to fill a result like `a`; see `map_custom1`.

    >>> def larger(y, a, b):
    ...     np.maximum(a, b, out=y)
    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> tp.map_custom2(a, tp.input("b", (2, 3), tp.F32), larger).shape
    (2, 3)
    """
    return apply(MAP_CUSTOM2, a, b, function=function, n_tasks=n_tasks, name=name)


def map_custom3(
    a: Tensor, b: Tensor, c: Tensor, function: Function, *, n_tasks: int = 0, name: str = ""
) -> Tensor:
    """Call `function(y, a, b, c)` to fill a result like `a`; see `map_custom1`.

    >>> def chosen(y, a, b, c):
    ...     y[...] = np.where(a > 0, b, c)
    >>> a = tp.input("a", (2, 3), tp.F32)
    >>> b = tp.input("b", (2, 3), tp.F32)
    >>> c = tp.input("c", (2, 3), tp.F32)
    >>> tp.map_custom3(a, b, c, chosen).shape
    (2, 3)
    """
    return apply(MAP_CUSTOM3, a, b, c, function=function, n_tasks=n_tasks, name=name)


def custom(
    sources: Sequence[Tensor],
    function: Function,
    shape: tuple[int, ...],
    to: DTypeLike = "f32",
    *,
    n_tasks: int = 0,
    name: str = "",
) -> Tensor:
    """Call `function(y, *sources)` to fill a result of `shape` (NumPy order) and the type `to`.

    Takes up to ten sources; otherwise as `map_custom1`. Raises GraphError, ShapeError.

    >>> def doubled(y, x):
    ...     y[...] = 2 * x
    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.custom([x], doubled, x.shape).shape
    (2, 3)
    """
    if len(sources) > MOST_SOURCES:
        raise GraphError(f"custom: {len(sources)} sources given; it takes at most {MOST_SOURCES}")
    ne, rank = ne_of(shape, "custom")
    wanted: dict[str, Value] = {"ne": ne, "rank": rank, "to": dtype_of(to).name}
    return apply(CUSTOM, *sources, function=function, n_tasks=n_tasks, name=name, **wanted)
