"""Cases of all ops as data, by the families of `tensorplug.ops`."""

from tensorplug_testing.cases import (
    attention,
    backward,
    conv,
    copy,
    custom,
    diagonal,
    elementwise,
    glu,
    grid,
    im2col,
    image,
    large,
    linear_attention,
    matmul,
    models,
    norm,
    optimizer,
    pool,
    reduce,
    repetition,
    rope,
    rows,
    softmax,
    sparse,
    ssm,
    tails,
    unary,
    window,
)
from tensorplug_testing.cases.case import Arg, Built, Case, build, node_of

_FAMILIES = (
    elementwise,
    unary,
    glu,
    reduce,
    norm,
    softmax,
    rope,
    matmul,
    rows,
    copy,
    image,
    window,
    diagonal,
    repetition,
    custom,
    optimizer,
    backward,
    attention,
    ssm,
    conv,
    im2col,
    pool,
    linear_attention,
    sparse,
)
SMALL: tuple[Case, ...] = tuple(case for family in _FAMILIES for case in family.CASES)
"""Small cases of every op, type and layout."""

LARGE: tuple[Case, ...] = tuple(large.CASES)
"""Cases that are large enough to be cut into tiles or distributed over threads."""

TAILS: tuple[Case, ...] = tuple(tails.CASES)
"""One case of each op that is slightly larger than a tile."""

_SEEN = frozenset(case.id for case in (*SMALL, *LARGE, *TAILS))
GRID: tuple[Case, ...] = tuple(case for case in grid.CASES if case.id not in _SEEN)
"""Cases of the same ops over wider grids of shapes, layouts, types and parameters."""

MODELS: tuple[Case, ...] = tuple(models.CASES)
"""The nodes of two real language models."""

CASES = (*SMALL, *LARGE, *TAILS, *GRID, *MODELS)
"""All cases that a device may be able to compute."""

REFUSED: tuple[Case, ...] = (*copy.REFUSED, *rows.REFUSED, *elementwise.REFUSED)
"""Cases that no device accepts so far: encoding to types that need a search for the best block."""

__all__ = [
    "CASES",
    "GRID",
    "LARGE",
    "MODELS",
    "REFUSED",
    "SMALL",
    "TAILS",
    "Arg",
    "Built",
    "Case",
    "build",
    "node_of",
]
