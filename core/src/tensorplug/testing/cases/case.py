"""`Case`: one use of one op, as data; and what turns it into a graph and its inputs."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug.tensor import Tensor, leaf, pad_ne
from tensorplug.testing.cases.blocks import SCATTERED, random_rows
from tensorplug_cpu.reference import compute, encode

Array = npt.NDArray[Any]
Ne = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """How the values of a leaf are drawn: a tag for the case id, and the function that draws them.

    The function takes a generator and a shape in NumPy order, always of four dimensions.
    """

    tag: str
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]


def uniform(low: float, high: float) -> Data:
    """Numbers between `low` and `high`."""
    return Data(f"{low:g}..{high:g}", lambda rng, shape: rng.uniform(low, high, shape))


def integers(low: int, high: int) -> Data:
    """Integers from `low` to `high`, that excluded; many equal ones where the range is short."""
    return Data(f"int{low}..{high}", lambda rng, shape: rng.integers(low, high, shape))


def among(*values: float) -> Data:
    """Each of `values` at least once where there is room, the rest at random."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        picked = np.concatenate([values, rng.choice(values, size)])[:size]
        return rng.permutation(picked).reshape(shape)

    return Data("among" + ",".join(f"{v:g}" for v in values), draw)


def distinct(below: int) -> Data:
    """Row numbers less than `below`, no two in a row of the leaf the same."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        rows = [rng.permutation(below)[: shape[-1]] for _ in range(int(np.prod(shape[:-1])))]
        return np.reshape(rows, shape)

    return Data(f"distinct{below}", draw)


UNIT = uniform(-1, 1)


@dataclass(frozen=True, slots=True)
class Arg:
    """One source: the sizes and the type that the op sees, the layout, the values."""

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

    `limit` bounds the normalised mean square error; with `each` every element must be near too.
    `compare` names how results are compared: `near`, `exact`, `encoded`, `order` or `set`.
    """

    op: str
    args: tuple[Arg | None, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 1e-7
    each: bool = False
    compare: str = "near"
    in_place: bool = False

    @property
    def id(self) -> str:
        """All that sets this case apart, in one word."""
        sources = ["none" if arg is None else str(arg) for arg in self.args]
        params = [
            f"{k}={getattr(v, '__name__', v)}".replace(" ", "") for k, v in self.params.items()
        ]
        return "-".join([self.op, *sources, *params, *(["in_place"] if self.in_place else [])])

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the sources, and the type asked for where there is one."""
        asked = self.params.get("to")
        named = [arg.dtype.name for arg in self.args if arg is not None]
        return (*named, asked) if isinstance(asked, str) else tuple(named)

    @property
    def layouts(self) -> tuple[str, ...]:
        """How the sources lie in memory."""
        return tuple(arg.layout for arg in self.args if arg is not None)

    def seed(self, base: int = 0) -> int:
        """Seed of the values, the same in every run and on every machine; `base` gives others."""
        return zlib.crc32(f"{self.id}#{base}".encode() if base else self.id.encode())


@dataclass(frozen=True, slots=True)
class Built:
    """A case as a graph: the node under test and what is stored in the leafs."""

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
    """Return the graph of `case` and the values of its leafs, drawn anew for each `base`."""
    seed = case.seed(base)
    rng = np.random.default_rng(seed)
    operands = _operands(case)
    stored = {
        seen.root: _stored(rng, arg, seen.root)
        for arg, seen in zip(case.args, operands, strict=True)
        if arg is not None and seen is not None
    }
    return Built(_node(case, operands), stored, case.id, seed)


def node_of(case: Case) -> Tensor:
    """The node under test alone: to ask a device about it takes no values."""
    return _node(case, _operands(case))


def _operands(case: Case) -> list[Tensor | None]:
    return [None if arg is None else LAYOUTS[arg.layout](arg) for arg in case.args]


def _node(case: Case, operands: list[Tensor | None]) -> Tensor:
    node = tp.apply(tp.OPS[case.op], *operands, **case.params)
    return tp.ops.in_place(node) if case.in_place else node


def _stored(rng: np.random.Generator, arg: Arg, root: Tensor) -> Array:
    if arg.dtype in SCATTERED:
        return random_rows(rng, arg.dtype, root.shape)
    values = arg.data.draw(rng, root.ne[::-1]).reshape(root.shape)
    slots = encode(arg.dtype, values)
    return slots.astype(np.float32) if arg.dtype is tp.F32 else slots


# --- layouts: a tensor of the wanted sizes, a view of a leaf unless it is plain ----------------


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
    return tp.strided(root, (a, b, c, d), nb, rank=len(arg.ne), offset=root.nb[1])


def _columns(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    root = _leaf(arg, (a + 2 * arg.dtype.block, b, c, d))
    return tp.strided(root, (a, b, c, d), root.nb, rank=len(arg.ne), offset=arg.dtype.size)


def _shifted(arg: Arg) -> Tensor:
    """Without gaps, but one element (or block) off the start of the memory."""
    size = int(np.prod(arg.ne))
    root = _leaf(arg, (size + arg.dtype.block,))
    wanted = leaf("", arg.ne[::-1], arg.dtype)
    return tp.strided(root, wanted.ne, wanted.nb, rank=len(arg.ne), offset=arg.dtype.size)


def _every_second_element(arg: Arg) -> Tensor:
    a, b, c, d = pad_ne(arg.ne)
    root = _leaf(arg, (2 * a, b, c, d))
    nb = (2 * root.nb[0], root.nb[1], root.nb[2], root.nb[3])
    offset = root.nb[0] if root.size else 0
    return tp.strided(root, (a, b, c, d), nb, rank=len(arg.ne), offset=offset)


def _strided(arg: Arg) -> Tensor:
    """Strides as they are given, in a leaf that just holds them."""
    a, b, c, d = pad_ne(arg.nb)
    seen = Tensor(arg.dtype, pad_ne(arg.ne), (a, b, c, d), len(arg.ne))
    root = _leaf(arg, (-(-seen.nbytes // arg.dtype.size) * arg.dtype.block,))
    return tp.strided(root, seen.ne, seen.nb, rank=len(arg.ne), offset=0)


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
    return tp.strided(view, view.ne, view.nb, rank=len(arg.ne), offset=0)
