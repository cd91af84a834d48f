"""Arrays in other shapes without copies."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorplug.device import Array


def viewed(array: Array, shape: tuple[int, ...]) -> Array:
    """Reshape without a copy; `shape` must only split dimensions, or join those without gaps."""
    view = array.reshape(shape)
    assert not view.size or np.may_share_memory(view, array)
    return view


def can_join(array: Array, axis: int) -> bool:
    """Whether dimensions `axis` and `axis + 1` can be looked at as one."""
    n, m = array.shape[axis : axis + 2]
    outer, inner = array.strides[axis : axis + 2]
    return bool(n == 1 or m == 1 or outer == inner * m)


def join(array: Array, axis: int) -> Array:
    """Look at dimensions `axis` and `axis + 1` as one."""
    if array.flags.c_contiguous:
        n, m = array.shape[axis : axis + 2]
        return array.reshape(*array.shape[:axis], n * m, *array.shape[axis + 2 :])
    shape, strides = list(array.shape), list(array.strides)
    n, m = shape[axis : axis + 2]
    step = strides[axis] if m == 1 else strides[axis + 1]
    shape[axis : axis + 2], strides[axis : axis + 2] = [n * m], [step]
    return as_strided(array, shape, strides)


def same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays are one: same first byte, sizes and strides."""
    return bool(
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.shape == b.shape
        and a.strides == b.strides
    )


def compact(arrays: Sequence[Array], keep: int = 0) -> list[Array]:
    """Look at arrays that broadcast together in as few dimensions as all of them allow.

    The last `keep` dimensions stay as they are. In the others all results have one shape; where an
    array repeats its stride is 0.
    """
    rank = arrays[0].ndim
    lead = rank - keep
    shape = np.broadcast_shapes(*(a.shape[:lead] for a in arrays))
    if not keep and all(a.shape == shape and a.flags.c_contiguous for a in arrays):
        return [a.reshape(-1) for a in arrays]
    steps = [[0 if a.shape[i] != shape[i] else a.strides[i] for i in range(lead)] for a in arrays]
    groups = _groups(shape, steps)
    return [_joined(a, (shape, step), groups, lead) for a, step in zip(arrays, steps, strict=True)]


def _groups(shape: tuple[int, ...], steps: list[list[int]]) -> list[tuple[int, int]]:
    """Ranges of dimensions that every array can join; dimensions of size 1 vanish."""
    axes = [i for i, n in enumerate(shape) if n != 1]
    groups: list[tuple[int, int]] = []
    for axis in axes:
        if groups and all(s[groups[-1][1]] == s[axis] * shape[axis] for s in steps):
            groups[-1] = (groups[-1][0], axis)
        else:
            groups.append((axis, axis))
    return groups or [(0, 0)][: len(shape)]


def _joined(
    array: Array, old: tuple[tuple[int, ...], list[int]], groups: list[tuple[int, int]], lead: int
) -> Array:
    shape, steps = old
    sizes = [int(np.prod(shape[first : last + 1])) for first, last in groups]
    strides = [steps[last] for _, last in groups]
    return as_strided(array, (*sizes, *array.shape[lead:]), (*strides, *array.strides[lead:]))


def distinct(array: Array) -> Array:
    """The array without its repetitions: size 1 where the stride is 0."""
    return array[tuple(slice(0, 1) if not s else slice(None) for s in array.strides)]
