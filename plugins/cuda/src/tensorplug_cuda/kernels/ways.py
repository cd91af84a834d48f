"""Ways to compute a node of which one is taken: by a setting, or by measurement (`tuning`).

`facts.choices[PRODUCTS]` has the names of the ways that may be taken, with spaces between. Where a
node fits several of them, `facts.choices` has the fastest one's name for the class of the node; the
first one is taken until it is known. `WAYS` has the ops that can be computed in several ways.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensorplug.device import Tensor
from tensorplug.dtypes import DType
from tensorplug.graph.tensor import Ne
from tensorplug_cuda import lt
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import Lowering
from tensorplug_simt.program import Program, Region

USUAL, TENSOR, CUBLASLT = "own", "tensor", "cublaslt"
PRODUCTS = "products"
LEAST = 2**27
"""Multiplications and additions of a node that is worth measuring: GPUs do fewer in 10 us."""
ALIGNED = 16
"""Bytes that kernels copy at once from operands whose rows start at multiples of so many."""


@dataclass(frozen=True)
class Way:
    """One way: which nodes it fits, and their programs."""

    fits: Callable[[Tensor, Facts], bool]
    program: Lowering


@dataclass(frozen=True)
class Ways:
    """The ways to compute nodes of an op: `USUAL`, which fits all, and others.

    `applies` says which nodes have a choice at all. `cut` makes of a node one with about so many
    operations, `mask` tells which operand hides others, and `size` how large the numbers of an
    operand are that it is tried with. Nodes with fewer than `least` operations are not measured.
    """

    ways: Mapping[str, Way]
    operations: Callable[[Tensor], int]
    applies: Callable[[Tensor], bool] = lambda _node: True
    cut: Callable[[Tensor, int], Tensor] = lambda node, _most: node
    mask: Callable[[Tensor], Tensor | None] = lambda _node: None
    size: Callable[[Tensor, Tensor], float] = lambda _node, _operand: 1.0
    least: int = LEAST


WAYS: dict[str, Ways] = {}
"""By op."""


def are_measured(facts: Facts) -> bool:
    """Whether several ways may be taken, so that the clock decides."""
    return len(_allowed(facts)) > 1


def names_of(node: Tensor, facts: Facts) -> tuple[str, ...]:
    """The ways that may compute `node`, the usual one first; empty where it has no choice."""
    known = WAYS.get(node.op)
    if known is None or not known.applies(node):
        return ()
    if are_measured(facts) and known.operations(node) < known.least:
        return (USUAL,)
    ways = ((name, known.ways.get(name)) for name in _allowed(facts))
    fitting = tuple(name for name, way in ways if way is not None and way.fits(node, facts))
    return fitting or (USUAL,)


def program_of(name: str, node: Tensor, facts: Facts) -> Program:
    """The program of one way."""
    return WAYS[node.op].ways[name].program(node, facts)


def chosen(node: Tensor, facts: Facts) -> Program:
    """The program of a node that has a choice."""
    names = names_of(node, facts)
    name = facts.choices.get(class_of(node, names, facts)) if len(names) > 1 else None
    return program_of(name if name in names else names[0], node, facts)


def class_of(node: Tensor, names: tuple[str, ...], facts: Facts) -> str:
    """What nodes share a choice.

    Op, types, sizes rounded up to powers of two, numbers and ways; then a short name for the
    kernels that all ways launch, and for the alignments that decide which path these take.
    """
    operands = tuple(map(_layout, node.operands))
    return _class(node.op, tuple(node.params.items()), operands, _layout(node), names, facts)


def _layout(tensor: Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return ()
    return (tensor.dtype, tensor.ne, tensor.nb, tensor.view_offset % ALIGNED)


@lru_cache(4096)
def _class(
    op: str,
    params: tuple[tuple[str, Any], ...],
    operands: tuple[tuple[Any, ...], ...],
    result: tuple[Any, ...],
    names: tuple[str, ...],
    facts: Facts,
) -> str:
    """`class_of` a node of which it gets the layout alone: who remembers a node keeps its graph."""
    given = tuple(_tensor(*layout) if layout else None for layout in operands)
    node = _tensor(*result, op=op, params=dict(params), operands=given)
    sources = (f"{source.dtype.name}[{_sizes(source)}]" for source in node.sources)
    numbers = (f"{name}={value}" for name, value in params)
    version = (str(lt.version()),) if CUBLASLT in names else ()
    compiled = [_compiled(program_of(name, node, facts)) for name in names]
    kernels = hashlib.sha256(repr(compiled).encode()).hexdigest()[:8]
    return f"{' '.join((op, *sources, *numbers))}: {' '.join((*names, *version, kernels))}"


def _tensor(dtype: DType, ne: Ne, nb: Ne, offset: int, **more: Any) -> Tensor:
    return Tensor(dtype, ne, nb, len(ne), view_offset=offset, **more)


def _compiled(program: Program) -> list[tuple[object, ...]]:
    """What a program launches, and how what it works on is aligned."""
    return [
        (*launch.variant, *map(_alignment, launch.regions.values())) for launch in program.launches
    ]


def _alignment(region: Region) -> tuple[bool, bool]:
    """Whether elements follow each other, and whether rows start where they can be copied fast."""
    offset = region.offset + (region.tensor.view_offset if region.tensor is not None else 0)
    places = (offset, *region.nb[1:])
    return region.nb[0] == region.dtype.size, not any(place % ALIGNED for place in places)


def _sizes(tensor: Tensor) -> str:
    return "x".join(str(1 << max(size - 1, 0).bit_length()) for size in tensor.ne)


def _allowed(facts: Facts) -> list[str]:
    return facts.choices.get(PRODUCTS, USUAL).split()
