"""`Case`: one use of one op, as data, and functions that make a graph and inputs of it."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug.device import Tensor, leaf
from tensorplug.graph.tensor import pad_ne
from tensorplug.ops.ids import NO_ROW
from tensorplug_cpu.reference import compute, encode
from tensorplug_testing.cases.blocks import SCATTERED, random_rows, spoil_scale

Array = npt.NDArray[Any]
Ne = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """The distribution of the values of a leaf: a tag for the case id, and a function that draws.

    The function takes a generator and a shape with four dimensions in NumPy order.
    """

    tag: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]
    scale: float | None = None
    """A scale that is not finite, for one block; None for ordinary values."""


def written(value: float) -> str:
    """The shortest text from which `value` can be read back exactly."""
    short = f"{value:g}"
    return short if float(short) == value or value != value else repr(float(value))


def uniform(low: float, high: float) -> Data:
    """Numbers between `low` and `high`."""
    return Data(
        f"{written(low)}..{written(high)}", lambda rng, shape: rng.uniform(low, high, shape)
    )


def integers(low: int, high: int) -> Data:
    """Integers from `low` on, below `high`. A short range gives many equal values."""
    return Data(f"int{low}..{high}", lambda rng, shape: rng.integers(low, high, shape))


def among(*values: float) -> Data:
    """Random choices of `values`, with each value at least once if there are enough elements."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        picked = np.concatenate([values, rng.choice(values, size)])[:size]
        return rng.permutation(picked).reshape(shape)

    return Data("among" + ",".join(map(written, values)), draw)


def distinct(below: int) -> Data:
    """Row numbers below `below`, all different within a row of the leaf."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        rows = [rng.permutation(below)[: shape[-1]] for _ in range(int(np.prod(shape[:-1])))]
        return np.reshape(rows, shape)

    return Data(f"distinct{below}", draw)


def partly(rows: Data) -> Data:
    """Row numbers of which about a third, and at least the first and the last, are -1 (no row)."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        ids = np.array(rows.draw(rng, shape))
        none = rng.random(ids.shape) < 1 / 3
        none.flat[:1] = none.flat[-1:] = True
        ids[none] = NO_ROW
        return ids

    return Data(f"partly_{rows.tag}", draw)


def with_one(value: float, at: str = "values") -> Data:
    """Numbers from -1 to 1 with one `value` among them: an element, or the scale of one block.

    With `at="scale"`, `spoil_scale` writes the value over the scale of a stored block.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        numbers = rng.uniform(-1, 1, shape)
        if at == "values":
            numbers.flat[rng.integers(numbers.size)] = value
        return numbers

    return Data(f"with_{value:g}_in_{at}", draw, value if at == "scale" else None)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = rng.integers(-127, 128, shape)
    values[..., ::16] = rng.choice([-127, 127], values[..., ::16].shape)
    return values / 128


UNIT = uniform(-1, 1)
BYTES = Data("bytes", _bytes)
"""Numbers between -1 and 1 that are not changed by rounding to bytes with scales.

They are multiples of 1/128, and the largest of each 16 numbers is 127/128 or -127/128.
"""


@dataclass(frozen=True, slots=True)
class Arg:
    """One source of a case: sizes and type as the op sees them, layout in memory, values."""

    ne: Ne
    dtype: tp.DType = tp.F32
    layout: str = "plain"
    data: Data = UNIT
    nb: Ne = ()
    """Strides in bytes, for the layout `strided`."""

    def __str__(self) -> str:
        layout = "" if self.layout == "plain" else f"~{self.layout}"
        layout += "x".join(map(str, self.nb))
        data = "" if self.data is UNIT else f"@{self.data.tag}"
        return f"{self.dtype.name}_{'x'.join(map(str, self.ne))}{layout}{data}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One use of one op.

    `compare` is the method of comparison: `near`, `product`, `exact`, `encoded`, `order`, `set` or
    `not_finite`. For `near`, `limit` bounds the normalised mean square error; with `each`, every
    element must be near too, and with `relative` its error is judged by its own size, however small
    that is. On streams that declare a `Rounding` for the node, `rounded` replaces
    a smaller `limit`. A `product` is compared element by element, with bounds from the sizes of its
    operands; `representable` says that rounding to bytes does not change the values of `x`. Every
    tier has a case of each `kind` of an op; the ordinary kind is "". A case with `always` is in
    tier `ci`, whatever its types and layouts are.
    """

    op: str
    args: tuple[Arg | None, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 1e-7
    rounded: float = 0
    representable: bool = False
    each: bool = False
    relative: bool = False
    compare: str = "near"
    in_place: bool = False
    kind: str = ""
    always: bool = False

    @property
    def id(self) -> str:
        """A unique name made of all properties of the case, without spaces."""
        sources = ["none" if arg is None else str(arg) for arg in self.args]
        params = [
            f"{k}={getattr(v, '__name__', v)}".replace(" ", "") for k, v in self.params.items()
        ]
        return "-".join([self.op, *sources, *params, *(["in_place"] if self.in_place else [])])

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the sources, and the type of the result if the case names one."""
        asked = self.params.get("to")
        named = [arg.dtype.name for arg in self.args if arg is not None]
        return (*named, asked) if isinstance(asked, str) else tuple(named)

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of the sources."""
        return tuple(arg.layout for arg in self.args if arg is not None)

    def seed(self, base: int = 0, again: int = 0) -> int:
        """The seed of the values, equal on all machines; it depends on `base` and `again`."""
        text = f"{self.id}#{base}" if base else self.id
        return zlib.crc32(f"{text}+{again}".encode() if again else text.encode())


@dataclass(frozen=True, slots=True)
class Built:
    """A case as a graph: the node under test, and the stored values of the leafs."""

    node: Tensor
    stored: dict[Tensor, Array]
    label: str
    seed: int

    @property
    def graph(self) -> tp.Graph:
        """The graph that computes the node."""
        return tp.Graph(self.node)

    def source_values(self) -> Array:
        """The values of the first source, in its NumPy shape."""
        found = compute(tp.dup(self.node.sources[0]), self.stored)
        return next(reversed(found.values()))


def build(case: Case, base: int = 0) -> Built:
    """Return the graph of `case` and random values of its leafs, from the seed `base`."""
    seed = case.seed(base)
    rng = np.random.default_rng(seed)
    operands = _operands(case)
    stored = {
        seen.root: _stored(rng, arg, seen.root)
        for arg, seen in zip(case.args, operands, strict=True)
        if arg is not None and seen is not None
    }
    return Built(_node(case, operands), stored, case.id, seed)


ATTEMPTS = 20
"""The most draws of a leaf until its values differ from the previous ones. Short lists of ids are
often drawn twice."""


def redrawn(case: Case, built: Built, base: int = 0, again: int = 1) -> Built:
    """Return the same graph with different values in every leaf: numbers, ids, positions, masks.

    A leaf keeps its values only if no others are possible, such as ids for a table of one row.
    """
    seed = case.seed(base, again)
    rng = np.random.default_rng(seed)
    args = [arg for arg in case.args if arg is not None]
    stored = {
        root: _other(rng, arg, root, before)
        for arg, (root, before) in zip(args, built.stored.items(), strict=True)
    }
    return Built(built.node, stored, built.label, seed)


def _other(rng: np.random.Generator, arg: Arg, root: Tensor, before: Array) -> Array:
    for _ in range(ATTEMPTS):
        values = _stored(rng, arg, root)
        if values.tobytes() != before.tobytes():
            break
    return values


def node_of(case: Case) -> Tensor:
    """The node under test without values, to ask a device whether it supports the node."""
    return _node(case, _operands(case))


def _operands(case: Case) -> list[Tensor | None]:
    return [None if arg is None else LAYOUTS[arg.layout](arg) for arg in case.args]


def _node(case: Case, operands: list[Tensor | None]) -> Tensor:
    node = tp.apply(tp.OPS[case.op], *operands, **case.params)
    return tp.ops.in_place(node) if case.in_place else node


def _stored(rng: np.random.Generator, arg: Arg, root: Tensor) -> Array:
    if arg.dtype in SCATTERED:
        slots = random_rows(rng, arg.dtype, root.shape)
    else:
        slots = encode(arg.dtype, arg.data.draw(rng, root.ne[::-1]).reshape(root.shape))
    if arg.data.scale is not None:
        spoil_scale(rng, arg.dtype, slots, arg.data.scale)
    return slots.astype(np.float32) if arg.dtype is tp.F32 else slots


# --- layouts: each function returns a tensor of the wanted sizes, a leaf or a view of one ------


def _plain(arg: Arg) -> Tensor:
    return _leaf(arg, arg.ne)


def _permuted(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    return _keep_rank(tp.permute(_leaf(arg, (a, c, b, d)), (0, 2, 1, 3)), arg)


def _transposed(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    return _keep_rank(tp.transpose(_leaf(arg, (b, a, c, d))), arg)


def _every_second_row(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    root = _leaf(arg, (a, 2 * b + 1, c, d))
    nb = (root.nb[0], 2 * root.nb[1], root.nb[2], root.nb[3])
    return tp.view_ne(root, (a, b, c, d), nb, rank=len(arg.ne), offset=root.nb[1])


def _columns(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    root = _leaf(arg, (a + 2 * arg.dtype.block, b, c, d))
    return tp.view_ne(root, (a, b, c, d), root.nb, rank=len(arg.ne), offset=arg.dtype.size)


def _shifted(arg: Arg) -> Tensor:
    """A contiguous view that starts one element (or block) after the start of the memory."""
    size = int(np.prod(arg.ne))
    root = _leaf(arg, (size + arg.dtype.block,))
    wanted = leaf("", arg.ne[::-1], arg.dtype)
    return tp.view_ne(root, wanted.ne, wanted.nb, rank=len(arg.ne), offset=arg.dtype.size)


def _every_second_element(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    root = _leaf(arg, (2 * a, b, c, d))
    nb = (2 * root.nb[0], root.nb[1], root.nb[2], root.nb[3])
    offset = root.nb[0] if root.size else 0
    return tp.view_ne(root, (a, b, c, d), nb, rank=len(arg.ne), offset=offset)


def _strided(arg: Arg) -> Tensor:
    """A view with the strides of `arg`, into a leaf that is just large enough."""
    a, b, c, d = pad_ne(arg.nb)
    seen = Tensor(arg.dtype, pad_ne(arg.ne), (a, b, c, d), len(arg.ne))
    root = _leaf(arg, (-(-seen.nbytes // arg.dtype.size) * arg.dtype.block,))
    return tp.view_ne(root, seen.ne, seen.nb, rank=len(arg.ne), offset=0)


LAYOUTS: dict[str, Callable[[Arg], Tensor]] = {
    "plain": _plain,
    "permuted": _permuted,
    "transposed": _transposed,
    "rows": _every_second_row,
    "columns": _columns,
    "shifted": _shifted,
    "spaced": _every_second_element,
    "strided": _strided,
}


def _leaf(arg: Arg, ne: Ne) -> Tensor:
    return leaf("", ne[::-1], arg.dtype)


def _keep_rank(view: Tensor, arg: Arg) -> Tensor:
    return tp.view_ne(view, view.ne, view.nb, rank=len(arg.ne), offset=0)
