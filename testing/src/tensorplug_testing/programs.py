"""Random well-formed graphs, drawn line by line as the Python code that builds them.

Hypothesis shrinks this code, so a failure is printed as a small program that can be run.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.device import Tensor, contiguous_nb
from tensorplug_cpu.reference import encode

SIZES = (1, 2, 3, 4, 8)
WIDE = 32
"""A row length that is a multiple of the length of small blocks."""
WEIGHTS = (tp.F32, tp.F16, tp.BF16, tp.Q8_0, tp.Q4_0)


@dataclass(frozen=True, slots=True)
class GraphCode:
    """Python code, line by line. Line i makes the tensor `ti`."""

    lines: tuple[str, ...]
    outputs: tuple[int, ...]
    seed: int

    def __str__(self) -> str:
        body = [f"t{i} = {line}" for i, line in enumerate(self.lines)]
        effects = ", ".join(f"t{i}" for i in self.writes)
        outputs = ", ".join(f"t{i}" for i in self.outputs)
        end = f"graph = tp.Graph([{outputs}], effects=[{effects}])"
        return "\n".join(["import tensorplug as tp", *body, end])

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the lines that write into memory of other tensors."""
        return tuple(i for i, line in enumerate(self.lines) if line.startswith(_WRITES))

    @property
    def exact(self) -> bool:
        """True if no line rounds to a type with less precision than f32."""
        return not any(name in line for line in self.lines for name in ("F16", "BF16", "Q"))

    def build(self) -> list[Tensor]:
        """Run the lines and return all tensors."""
        known: dict[str, Any] = {"tp": tp}
        for i, line in enumerate(self.lines):
            known[f"t{i}"] = eval(line, known)
        return [known[f"t{i}"] for i in range(len(self.lines))]

    def stored(self, tensors: Sequence[Tensor], *, again: int = 0) -> dict[Tensor, Any]:
        """Values of the leafs, drawn from the seed; each number `again` gives different values."""
        rng = np.random.default_rng((self.seed, again))
        return {t: _stored(rng, t) for t in tensors if t.is_leaf}


_WRITES = ("tp.cpy(", "tp.set_rows(", "tp.ops.in_place(")


def _stored(rng: np.random.Generator, tensor: Tensor) -> Any:
    if tensor.dtype is tp.I32:  # ids of rows; every table has at least two rows
        return rng.permutation(2)[: tensor.size].astype(np.int32).reshape(tensor.shape)
    slots = encode(tensor.dtype, rng.uniform(-1, 1, tensor.shape))
    return slots.astype(np.float32) if tensor.dtype is tp.F32 else slots


@dataclass
class _Pool:
    """The lines drawn so far and their tensors."""

    draw: Any
    lines: list[str]
    tensors: list[Tensor]

    def add(self, line: str) -> int:
        """Append a line and build its tensor."""
        known = {"tp": tp, **{f"t{i}": t for i, t in enumerate(self.tensors)}}
        self.tensors.append(eval(line, known))
        self.lines.append(line)
        return len(self.lines) - 1

    def leaf(self, shape: Sequence[int], dtype: tp.DType = tp.F32) -> int:
        """A fresh input."""
        name = f"t{len(self.lines)}"
        return self.add(f'tp.input("{name}", {tuple(shape)}, tp.{dtype.name.upper()})')

    def pick(self, wanted: Callable[[Tensor], bool]) -> int | None:
        """The number of a tensor that satisfies `wanted`; shrinking prefers later tensors."""
        found = [i for i, t in enumerate(self.tensors) if wanted(t)]
        return self.draw(st.sampled_from(found)) if found else None

    def number(self, *values: Any) -> Any:
        """One of `values`."""
        return self.draw(st.sampled_from(values))


def _real(t: Tensor) -> bool:
    return t.dtype in (tp.F32, tp.F16, tp.BF16) and t.size > 0


def _f32(t: Tensor) -> bool:
    return t.dtype is tp.F32 and t.size > 0


def _unary(pool: _Pool, x: int) -> str:
    return f"tp.{pool.number('relu', 'silu', 'tanh', 'neg', 'abs', 'sigmoid')}(t{x})"


def _scale(pool: _Pool, x: int) -> str:
    return f"tp.scale(t{x}, {pool.number(0.5, -1.5)}, bias={pool.number(0.0, 0.25)})"


def _binary(pool: _Pool, x: int) -> str:
    a = pool.tensors[x]
    other = pool.pick(lambda t: t.dtype is a.dtype and tp.ops.rules.can_repeat(t, a.ne))
    return f"tp.{pool.number('add', 'sub', 'mul')}(t{x}, t{x if other is None else other})"


def _rows(pool: _Pool, x: int) -> str:
    if pool.tensors[x].dtype is not tp.F32:
        return f"tp.cast(t{x}, tp.F32)"
    return f"tp.{pool.number('soft_max', 'rms_norm', 'norm', 'sum_rows', 'cumsum')}(t{x})"


def _product(pool: _Pool, x: int) -> str:
    row = pool.tensors[x].ne[0]
    kinds = WEIGHTS if row % WIDE == 0 else WEIGHTS[:3]
    weight = pool.leaf((pool.number(*SIZES[1:]), row), pool.number(*kinds))
    return f"tp.mul_mat(t{weight}, t{x})"


def _convert(pool: _Pool, x: int) -> str:
    return f"tp.cast(t{x}, tp.{pool.number('F32', 'F16', 'BF16')})"


def _compact(pool: _Pool, x: int) -> str:
    return f"tp.{pool.number('cont', 'dup')}(t{x})"


def _turned(pool: _Pool, x: int) -> str:
    return f"t{x}.mT" if pool.tensors[x].rank >= 2 else f"tp.cont(t{x})"


def _flattened(pool: _Pool, x: int) -> str:
    return f"t{x}.reshape(-1)" if pool.tensors[x].is_contiguous else f"tp.cont(t{x})"


def _sliced(pool: _Pool, x: int) -> str:
    length = len(pool.tensors[x]) if pool.tensors[x].rank else 1
    if length < 2:
        return f"tp.dup(t{x})"
    start = pool.number(*range(length))
    return f"t{x}[{start}:{pool.number(*range(start + 1, length + 1))}]"


def _permuted(pool: _Pool, x: int) -> str:
    axes = tuple(range(pool.tensors[x].rank))
    order = pool.number(axes[::-1], axes[1:] + axes[:1], axes[-1:] + axes[:-1])
    return f"tp.permute(t{x}, {order})"


def _joined(pool: _Pool, x: int) -> str:
    a = pool.tensors[x]
    if not a.rank:
        return f"tp.dup(t{x})"
    dim = pool.number(*range(min(a.rank, 2)))

    def fits(t: Tensor) -> bool:
        return t.dtype is a.dtype and all(t.ne[i] == a.ne[i] for i in range(4) if i != dim)

    return f"tp.concat(t{x}, t{pool.pick(fits)}, axis={-1 - dim})"


def _in_place(pool: _Pool, x: int) -> str:
    if pool.tensors[x].nb != contiguous_nb(pool.tensors[x].dtype, pool.tensors[x].ne):
        return f"tp.cont(t{x})"
    call = f"tp.scale(t{x}, {pool.number(0.5, 2.0)})"
    return f"tp.ops.in_place({call})"


def _copied_into(pool: _Pool, x: int) -> str:
    size = pool.tensors[x].size
    target = pool.pick(lambda t: _real(t) and t.size == size and t is not pool.tensors[x])
    if target is None:
        target = pool.leaf(pool.tensors[x].shape)
    return f"tp.cpy(t{x}, t{target})"


def _looked_up(pool: _Pool, x: int) -> str:
    table = pool.tensors[x]
    if table.ne[1] < 2 or table.ne[2:] != (1, 1):
        return f"tp.dup(t{x})"
    return f"tp.get_rows(t{x}, t{pool.leaf((2,), tp.I32)})"


def _scattered(pool: _Pool, x: int) -> str:
    rows = pool.tensors[x]
    if not _f32(rows) or rows.ne[1] != 2 or rows.ne[2:] != (1, 1):
        return f"tp.dup(t{x})"
    kinds = [tp.F32, tp.F16, *([tp.Q8_0] if rows.ne[0] % WIDE == 0 else [])]
    table = pool.leaf((pool.number(2, 4), rows.ne[0]), pool.number(*kinds))
    return f"tp.set_rows(t{table}, t{x}, t{pool.leaf((2,), tp.I32)})"


ACTIONS: tuple[Callable[[_Pool, int], str], ...] = (
    _unary,
    _binary,
    _scale,
    _rows,
    _product,
    _convert,
    _compact,
    _turned,
    _flattened,
    _sliced,
    _permuted,
    _joined,
    _in_place,
    _copied_into,
    _looked_up,
    _scattered,
)


@st.composite
def programs(draw: Any, *, longest: int = 12) -> GraphCode:
    """A strategy for programs of up to `longest` steps: views, writes, in-place ops, many types."""
    pool = _Pool(draw, [], [])
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from(SIZES)) for _ in range(rank - 1)]
    pool.leaf([*shape, draw(st.sampled_from((*SIZES, WIDE)))])
    for _ in range(draw(st.integers(1, longest))):
        x = pool.pick(_real)
        assert x is not None
        line = draw(st.sampled_from(ACTIONS))(pool, x)
        pool.add(line)
    computed = [i for i, t in enumerate(pool.tensors) if not t.is_leaf and not t.dtype.is_block]
    last = computed[-1:] or [0]
    more = draw(st.lists(st.sampled_from(computed or [0]), max_size=2))
    outputs = tuple(dict.fromkeys([*last, *more]))
    return _pruned(GraphCode(tuple(pool.lines), outputs, draw(st.integers(0, 2**16))))


def _pruned(program: GraphCode) -> GraphCode:
    """The program without lines that neither an output nor a write needs."""
    needed: set[int] = set()
    waiting = [*program.outputs, *program.writes]
    while waiting:
        line = waiting.pop()
        if line not in needed:
            needed.add(line)
            waiting.extend(int(n) for n in _NUMBER.findall(program.lines[line]) if int(n) != line)
    new = {old: i for i, old in enumerate(sorted(needed))}
    lines = [_NUMBER.sub(lambda found: f"t{new[int(found[1])]}", program.lines[old]) for old in new]
    return GraphCode(tuple(lines), tuple(new[i] for i in program.outputs), program.seed)


_NUMBER = re.compile(r"\bt(\d+)\b")
