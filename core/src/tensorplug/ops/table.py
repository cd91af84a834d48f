"""The op table: one record for each op, with everything about the op except its kernels.

>>> tp.ops.OPS["relu"].formula
'y = max(x, 0)'
"""

import builtins
import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensorplug.dtypes import DType
from tensorplug.errors import DTypeError, GraphError, OptionError, ShapeError
from tensorplug.graph.tensor import Ne, Tensor, Value, contiguous_nb
from tensorplug.ops.split import ShardRule, SplitRule, resized, whole


@dataclass(frozen=True, slots=True)
class Source:
    """One source of an op: its name, the types it may have, and whether it may be absent.

    For a source that holds row ids, `rows_of` names the table of rows (another source, or "" for
    the result) and the dimension that the ids number. `tensorplug.ops.ids` checks ids.

    >>> [source.name for source in tp.op("mul_mat").sources]
    ['w', 'x']
    """

    name: str
    types: frozenset[DType]
    optional: bool = False
    rows_of: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an op. A parameter that is `required` has no default.

    >>> tp.op("scale").params[1]
    Param(name='bias', kind=<class 'float'>, default=0.0, required=False)
    """

    name: str
    kind: type
    default: Value = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one use of an op, by name. The rules of an op take a Call.

    >>> node = tp.scale(tp.input("x", (2, 3), tp.F32), 2)
    >>> call = tp.Call(tp.op(node.op), node.operands, node.params)
    >>> call["x"].shape, call.params["scale"]
    ((2, 3), 2.0)
    """

    op: "Op"
    operands: tuple[Tensor | None, ...]
    params: Mapping[str, Value]

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise GraphError(f"{self.op.name}: source {name!r} is missing")
        return found

    def get(self, name: str) -> Tensor | None:
        """The source called `name`, or None if it is absent."""
        return self.operands[self.op.positions[name]]

    def int(self, name: str) -> builtins.int:
        """The integer parameter `name`."""
        value = self.params[name]
        if not isinstance(value, int):
            raise OptionError(
                f"{self.op.name}: parameter {name!r} must be an integer, got {value!r}"
            )
        return value

    def number(self, name: str) -> float:
        """The float parameter `name`."""
        value = self.params[name]
        assert isinstance(value, float), "_coerce() makes it one"
        return value

    def fail(self, problem: str) -> ShapeError:
        """Return a ShapeError that names the op, the problem and the shapes of all sources."""
        shapes = ", ".join(
            f"{s.name} {list(t.shape)}"
            for s, t in zip(self.op.sources, self.operands, strict=False)
            if t is not None
        )
        got = f"; got {shapes}" if shapes else ""
        return ShapeError(f"{self.op.name}: {problem}{got}")


@dataclass(frozen=True, slots=True)
class Alias:
    """Memory that a result shares with a source: it starts `offset` bytes into the source.

    `nb` are the strides of the result in bytes.
    """

    source: Tensor
    offset: int
    nb: Ne


Shape = tuple[Ne, int]
ShapeRule = Callable[[Call], Shape]
TypeRule = Callable[[Call], DType]
AliasRule = Callable[[Call], Alias]
Check = Callable[[Call], None]
Reference = Callable[..., Any]
"""A function from parameters and the values of the sources to the values of the result.

Values of sources are float64 or int64 arrays of four dimensions in NumPy order, or None for a
source that is absent."""


@dataclass(frozen=True, slots=True)
class Op:
    """The sources, parameters and rules of an op.

    `in_place` names the sources whose memory the allocator may reuse for the result. `alias` gives
    the memory of results that share memory with a source; with `writes` the op writes to that
    memory (an effect), otherwise the result is a view. `also_writes` names further sources that the
    op changes. `split` lists the ways to run the op on shards of its sources, one on each of
    several devices, and `shard` gives the parameters of one shard.

    An op of another distribution brings its own `reference`, which the cpu device runs if it has no
    kernel, and `cases`, a function that returns cases for the conformance kit. References and cases
    of the ops of this table are in tensorplug-cpu and in `tensorplug_testing.cases`.

    >>> scale = tp.op("scale")
    >>> scale.formula, [param.name for param in scale.params]
    ('y = scale * x + bias', ['scale', 'bias'])
    """

    name: str
    sources: tuple[Source, ...]
    shape: ShapeRule
    dtype: TypeRule
    params: tuple[Param, ...] = ()
    check: tuple[Check, ...] = ()
    in_place: tuple[str, ...] = ()
    alias: AliasRule | None = None
    writes: bool = False
    also_writes: tuple[str, ...] = ()
    split: SplitRule = whole
    shard: ShardRule = resized
    reference: Reference | None = None
    cases: Callable[[], Iterable[Any]] | None = None
    formula: str = ""
    origin: str = "ggml"
    positions: Mapping[str, int] = field(init=False, compare=False)
    """Index of each source by name."""
    holds_ids: bool = field(init=False, compare=False)
    """True if a source holds ids of rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds_ids", any(s.rows_of is not None for s in self.sources))
        positions = {source.name: i for i, source in enumerate(self.sources)}
        object.__setattr__(self, "positions", MappingProxyType(positions))

    @property
    def is_view(self) -> bool:
        """True if results are views, which need no computation."""
        return self.alias is not None and not self.writes


OPS: dict[str, Op] = {}
"""All ops by name. Filled by `register_op`."""


def register_op(op: Op) -> Op:
    """Add `op` to the table. Names of ops of other distributions have a prefix: `acme.foo`.

    Raises GraphError if the record contradicts itself or the name exists.

    >>> pieces = {"sources": (tp.Source("x", frozenset({tp.F32})),), "formula": "y = x + 1"}
    >>> more = tp.Op("acme.more", shape=tp.op("neg").shape, dtype=tp.op("neg").dtype, **pieces)
    >>> tp.apply(tp.register_op(more), tp.input("x", (2, 3), tp.F32)).shape
    (2, 3)
    """
    if op.name in OPS:
        raise GraphError(
            f"register_op: {op.name!r} exists already; choose a name with a prefix of your own"
        )
    if not op.formula:
        raise GraphError(f"register_op: {op.name!r} has no formula; say what it computes")
    if op.writes and op.alias is None:
        raise GraphError(f"register_op: {op.name!r} writes but has no alias rule; give one")
    unknown = {*op.in_place, *op.also_writes} - {s.name for s in op.sources}
    if unknown:
        raise GraphError(f"register_op: {op.name!r} may replace unknown sources {sorted(unknown)}")
    numbered = {s.rows_of[0] for s in op.sources if s.rows_of is not None}
    strange = numbered - {"", *(s.name for s in op.sources if not s.optional)}
    if strange:
        raise GraphError(
            f"register_op: {op.name!r} has ids for rows of {sorted(strange)}, which are not "
            "required sources"
        )
    if op.also_writes and not op.writes:
        raise GraphError(f"register_op: {op.name!r} has also_writes but not writes; set both")
    names = [*(s.name for s in op.sources), *(p.name for p in op.params)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise GraphError(f"register_op: {op.name!r} has two sources or parameters called {twice!r}")
    OPS[op.name] = op
    return op


def op(name: str) -> Op:
    """Return the op called `name`. Raises GraphError, which suggests the nearest name.

    >>> tp.op("mul_mat").formula
    'y[n, m] = sum over k of w[k, n] * x[k, m]'
    """
    if name in OPS:
        return OPS[name]
    close = difflib.get_close_matches(name, OPS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see tensorplug.ops.OPS"
    raise GraphError(f"op: unknown op {name!r}; {hint}")


def apply(op: Op, *operands: Tensor | None, name: str = "", **params: Value) -> Tensor:
    """Return the tensor that `op` computes from `operands` and `params`.

    Raises ShapeError, DTypeError, OptionError, GraphError.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.apply(tp.op("scale"), x, scale=2.0, bias=1.0).shape
    (2, 3)
    """
    call = Call(op, _bind_sources(op, operands), _bind_params(op, params))
    for check in op.check:
        check(call)
    ne, rank = op.shape(call)
    dtype = op.dtype(call)
    if op.alias is None:
        return Tensor(
            dtype,
            ne,
            contiguous_nb(dtype, ne),
            rank,
            op.name,
            call.operands,
            call.params,
            name=name,
        )
    alias = op.alias(call)
    return Tensor(
        dtype,
        ne,
        alias.nb,
        rank,
        op.name,
        call.operands,
        call.params,
        view_of=alias.source.root,
        view_offset=alias.source.view_offset + alias.offset,
        writes=op.writes,
        also_writes=tuple(call[name] for name in op.also_writes),
        name=name,
    )


def replaceable_sources(node: Tensor) -> tuple[Tensor, ...]:
    """The sources whose memory the result of `node` may reuse, in order of preference.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.replaceable_sources(tp.relu(x)) == (x,)
    True
    """
    record = OPS.get(node.op)
    return () if record is None or record.alias is not None else tuple(_replaceable(record, node))


def _replaceable(record: Op, node: Tensor) -> list[Tensor]:
    found = (node.operands[record.positions[name]] for name in record.in_place)
    return [t for t in found if t is not None]


def _bind_sources(op: Op, operands: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    if len(operands) > len(op.sources):
        raise GraphError(
            f"{op.name}: {len(operands)} sources given; the op takes at most {len(op.sources)}"
        )
    padded = (*operands, *[None] * (len(op.sources) - len(operands)))
    for source, tensor in zip(op.sources, padded, strict=True):
        if tensor is None:
            if not source.optional:
                raise GraphError(f"{op.name}: source {source.name!r} is missing")
        elif tensor.dtype not in source.types:
            raise DTypeError(
                f"{op.name}: {source.name} {tensor} has type {tensor.dtype.name}; takes "
                f"{_listed(source.types)}"
            )
        elif tensor.splits_blocks:
            raise ShapeError(
                f"{op.name}: {source.name} {tensor} is a transposed block type; only `x @ w.T` "
                "accepts one, so cast() the tensor before it is transposed"
            )
    return padded


def _listed(types: frozenset[DType]) -> str:
    """Names of types; block types are only counted if there are more than FEW."""
    plain = sorted(dtype.name for dtype in types if not dtype.is_block)
    blocks = sorted(dtype.name for dtype in types if dtype.is_block)
    if len(blocks) > FEW:
        return f"{', '.join(plain)} and {len(blocks)} block types"
    return ", ".join([*plain, *blocks])


FEW = 5
"""Block types that an error lists by name."""


def _bind_params(op: Op, given: Mapping[str, Value]) -> Mapping[str, Value]:
    known = {p.name: p for p in op.params}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise OptionError(f"{op.name}: unknown parameters {unknown}; known are {sorted(known)}")
    missing = [p.name for p in op.params if p.required and p.name not in given]
    if missing:
        raise OptionError(f"{op.name}: parameters {missing} are missing")
    bound = {p.name: _coerce(op, p, given.get(p.name, p.default)) for p in op.params}
    return MappingProxyType(bound)


def _coerce(op: Op, param: Param, value: Value) -> Value:
    if value is None and param.default is None and not param.required:
        return None
    plain: Value = _plain(value)
    if param.kind is float and type(plain) is int:
        return float(plain)
    # To isinstance() a bool is an int, but a caller who passes one has most likely made a mistake.
    if isinstance(plain, param.kind) and (param.kind is bool or not isinstance(plain, bool)):
        return plain
    raise OptionError(
        f"{op.name}: parameter {param.name!r} must be {param.kind.__name__}, got {value!r}"
    )


def _plain(value: Any) -> Any:
    """`value` with NumPy numbers converted to Python numbers."""
    if isinstance(value, tuple):
        return tuple(_plain(entry) for entry in value)
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value
