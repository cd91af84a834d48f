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
"""Every op, type and layout, with few elements."""

LARGE: tuple[Case, ...] = tuple(large.CASES)
"""A few that devices cut into tiles or share out to threads."""

TAILS: tuple[Case, ...] = tuple(tails.CASES)
"""One of each op that is just larger than a tile."""

_SEEN = frozenset(case.id for case in (*SMALL, *LARGE, *TAILS))
GRID: tuple[Case, ...] = tuple(case for case in grid.CASES if case.id not in _SEEN)
"""The same ops over wider grids of shapes, layouts, types and parameters."""

MODELS: tuple[Case, ...] = tuple(models.CASES)
"""The ops of two real language models, as they are there."""

CASES = (*SMALL, *LARGE, *TAILS, *GRID, *MODELS)
"""What a device computes, or refuses with a reason of its own."""

REFUSED: tuple[Case, ...] = (*copy.REFUSED, *rows.REFUSED, *elementwise.REFUSED)
"""What every device refuses so far: encoding to types whose best block must be searched for."""

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
