"""Ways to compute a node of which one is taken: by a setting, or by measurement (`tuning`).

`facts.choices[PRODUCTS]` has the names of the ways that may be taken, with spaces between. Where a
node fits several of them, `facts.choices` has the fastest one's name for the class of the node; the
first one is taken until it is known. `WAYS` has the ops that can be computed in several ways.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorplug.tensor import Tensor
from tensorplug_cuda import lt
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import Lowering
from tensorplug_simt.program import Program

USUAL, TENSOR, CUBLASLT = "own", "tensor", "cublaslt"
PRODUCTS = "products"
LEAST = 2**27
"""Multiplications and additions of a node that is worth measuring: GPUs do fewer in 10 us."""


@dataclass(frozen=True)
class Way:
    """One way: which nodes it fits, and their programs."""

    fits: Callable[[Tensor, Facts], bool]
    program: Lowering


@dataclass(frozen=True)
class Ways:
    """The ways to compute nodes of an op: `USUAL`, which fits all, and others.

    `applies` says which nodes have a choice at all. `cut` makes of a node one with about so many
    operations, and `mask` tells which operand hides others. Nodes with fewer than `least`
    operations are not measured.
    """

    ways: Mapping[str, Way]
    operations: Callable[[Tensor], int]
    applies: Callable[[Tensor], bool] = lambda _node: True
    cut: Callable[[Tensor, int], Tensor] = lambda node, _most: node
    mask: Callable[[Tensor], Tensor | None] = lambda _node: None
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
    name = facts.choices.get(class_of(node, names)) if len(names) > 1 else None
    return program_of(name if name in names else names[0], node, facts)


def class_of(node: Tensor, names: tuple[str, ...]) -> str:
    """What nodes share a choice: op, types, sizes rounded up to powers of two, numbers, ways."""
    sources = (f"{source.dtype.name}[{_sizes(source)}]" for source in node.sources)
    numbers = (f"{name}={value}" for name, value in node.params.items())
    version = (str(lt.version()),) if CUBLASLT in names else ()
    return f"{' '.join((node.op, *sources, *numbers))}: {' '.join((*names, *version))}"


def _sizes(tensor: Tensor) -> str:
    return "x".join(str(1 << max(size - 1, 0).bit_length()) for size in tensor.ne)


def _allowed(facts: Facts) -> list[str]:
    return facts.choices.get(PRODUCTS, USUAL).split()
