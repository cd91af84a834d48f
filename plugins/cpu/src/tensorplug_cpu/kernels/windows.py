"""Windows of arrays without copies, and the zeros around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorplug.device import Array
from tensorplug.dtypes import F32, DType
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.task import Task
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import load, store


@dataclass(frozen=True, slots=True)
class Slide:
    """How windows slide over the last dimensions of an array, slowest first."""

    taps: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def of(cls, params: Mapping[str, Any], taps: Sequence[int]) -> "Slide":
        """The windows of a node's parameters, whose dimension 0 is the fastest."""
        order = range(len(taps))[::-1]
        steps, pads, dilations = (tuple(params[f"{c}{dim}"] for dim in order) for c in "spd")
        return cls(tuple(taps), steps, pads, dilations)

    def padded(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Sizes with the zeros on both sides."""
        return tuple(n + 2 * pad for n, pad in zip(sizes, self.pads, strict=True))

    def inside(self, array: Array) -> Array:
        """A padded array without its padding."""
        last = array.shape[-len(self.pads) :]
        part: Array = array[
            along_last([slice(p, n - p) for p, n in zip(self.pads, last, strict=True)])
        ]
        return part

    def windows(self, array: Array) -> Array:
        """Look at a padded array as [..., taps, windows]; the look may be written tap by tap."""
        dims = len(self.taps)
        sizes, strides = array.shape[-dims:], array.strides[-dims:]
        counts = [
            (n - dilation * (taps - 1) - 1) // step + 1
            for n, taps, step, dilation in zip(
                sizes, self.taps, self.steps, self.dilations, strict=True
            )
        ]
        inner = [b * d for b, d in zip(strides, self.dilations, strict=True)]
        outer = [b * s for b, s in zip(strides, self.steps, strict=True)]
        return as_strided(
            array,
            (*array.shape[:-dims], *self.taps, *counts),
            (*array.strides[:-dims], *inner, *outer),
        )


def along_last(index: Sequence[Any]) -> tuple[Any, ...]:
    """An index of the last dimensions, all of those before."""
    return (..., *index)


def with_zeros(
    task: Task, x: Operand, slide: Slide, dtype: DType = F32
) -> tuple[Array, Sequence[Step]]:
    """`x` with zeros around it, as numbers of type `dtype`, and the steps that make it so."""
    if x.dtype is dtype and not any(slide.pads):
        return x.array, []
    dims = len(slide.pads)
    shape = (*x.array.shape[:-dims], *slide.padded(x.array.shape[-dims:]))
    padded = task.scratch(shape, dtype.storage)
    zeros = [partial(padded.fill, 0)] if any(slide.pads) else []
    return padded, [*zeros, *converted(task, x, Operand(slide.inside(padded), dtype))]


def converted(task: Task, x: Operand, out: Operand) -> Sequence[Step]:
    """Steps that copy numbers of one type to another, by way of f32."""
    if x.dtype is out.dtype:
        return [partial(np.copyto, out.array, x.array)]
    if out.dtype is F32:
        return [load(x.array, x.dtype, out.array)]
    if x.dtype is F32:
        return [store(x.array, out.dtype, out.array)]
    wide = task.scratch(x.array.shape)
    return [load(x.array, x.dtype, wide), store(wide, out.dtype, out.array)]


def packed(task: Task, x: Operand) -> tuple[Array, Sequence[Step]]:
    """`x` as f32 without gaps, and the steps that make it so."""
    if x.dtype is F32 and x.array.flags.c_contiguous:
        return x.array, []
    wide = task.scratch(x.array.shape)
    return wide, converted(task, x, Operand(wide, F32))
