"""Policies: how stored tensors (weights, caches) are cut over several devices."""

import difflib
from collections.abc import Callable, Mapping, Sequence

from tensorplug.errors import OptionError
from tensorplug.graph.tensor import Tensor
from tensorplug.meta.state import Partition, cut, deal
from tensorplug.ops.split import AXES

Policy = Callable[[Tensor], Partition | None]
"""Maps a tensor to its state; None to mirror it on each device."""
Rule = Callable[[Tensor, Sequence[float]], Partition | None]


def _mirrored(_tensor: Tensor, _ratio: Sequence[float]) -> Partition | None:
    return None


def _rows(tensor: Tensor, ratio: Sequence[float]) -> Partition | None:
    """Cut matrices along dimension 1 (rows): each device computes some outputs of a product.

    Vectors are mirrored.
    """
    return cut(1, deal(tensor.ne[1], ratio)) if tensor.ne[1] > 1 else None


def _columns(tensor: Tensor, ratio: Sequence[float]) -> Partition | None:
    """Cut along dimension 0 (within rows): each device computes a summand of a product.

    Tensors with rows of one block or less are mirrored.
    """
    block = tensor.dtype.block
    return cut(0, deal(tensor.ne[0], ratio, unit=block)) if tensor.ne[0] > block else None


def _slowest(tensor: Tensor, ratio: Sequence[float]) -> Partition | None:
    """Cut along the slowest dimension with more than one element."""
    axis = max((a for a in AXES if tensor.ne[a] > 1), default=0)
    unit = tensor.dtype.block if axis == 0 else 1
    return cut(axis, deal(tensor.ne[axis], ratio, unit=unit)) if tensor.size > 1 else None


POLICIES: Mapping[str, Rule] = {
    "mirrored": _mirrored,
    "rows": _rows,
    "columns": _columns,
    "slowest": _slowest,
}
"""Policies by name."""


def policy_called(name: str, ratio: Sequence[float]) -> Policy:
    """Return the policy `name`, cutting in the proportions of `ratio`. Raises OptionError."""
    rule = POLICIES.get(name)
    if rule is None:
        close = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(POLICIES)}"
        raise OptionError(f"meta.device: unknown policy {name!r}; {hint}")
    return lambda tensor: rule(tensor, ratio)
