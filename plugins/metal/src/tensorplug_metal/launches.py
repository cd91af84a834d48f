"""Launches with everything resolved: pipelines, buffers of Metal's, parameter blocks, barriers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import Metal

from tensorplug.errors import ShapeError
from tensorplug_metal.barriers import barriers
from tensorplug_metal.memory import OnGpu
from tensorplug_metal.pages import View
from tensorplug_simt.merging import Placed, joined

if TYPE_CHECKING:
    from tensorplug_metal.device import MetalDevice


class Ready(NamedTuple):
    """A launch: `buffers` in the order of the kernel's, `block` after them.

    With `waits` it starts after all earlier ones.
    """

    name: str
    pipeline: Any
    buffers: tuple[Any, ...]
    block: bytes
    groups: Any
    items: Any
    waits: bool


def ready(
    device: "MetalDevice", launches: Iterable[Sequence[Placed]], *, concurrent: bool
) -> list[Ready]:
    """Launches of one or several parts as they will be queued. Raises ShapeError.

    Unless `concurrent`, each waits for the one before.
    """
    together = [kept for parts in launches for kept in _together(parts)]
    waits = barriers(together) if concurrent else [True] * len(together)
    return [_ready(device, parts, waits=wait) for parts, wait in zip(together, waits, strict=True)]


def _together(parts: Sequence[Placed]) -> list[Sequence[Placed]]:
    """Parts of one launch, or one by one where no views have the memory of all."""
    return [parts] if views_of(parts) is not None else [(part,) for part in parts]


def views_of(parts: Sequence[Placed]) -> list[View] | None:
    """For each buffer of the kernel a view with what all parts reach; None where none has it."""
    found = []
    for i, buffer in enumerate(parts[0].buffers):
        ranges = [part.ranges[i] for part in parts]
        assert isinstance(buffer, OnGpu)
        _, start = parts[0].homes[i]
        first, end = min(r.start for r in ranges) - start, max(r.end for r in ranges) - start
        view = buffer.view(min(first, end), end)
        if view is None:
            return None
        found.append(view)
    return found


def _ready(device: "MetalDevice", parts: Sequence[Placed], *, waits: bool) -> Ready:
    views = views_of(parts)
    if views is None:
        raise ShapeError(
            f"{device.name}: {parts[0].launch.kernel.name}: a tensor lies across the parts of its "
            "buffer; import_host(..., largest_tensor=) makes them overlap"
        )
    moved = [_moved(part, views) for part in parts]
    count, block, groups = joined(moved)
    launch = parts[0].launch
    return Ready(
        launch.kernel.name,
        device.programs.pipeline(launch, parts=count),
        tuple(view.handle for view in views),
        block.tobytes(),
        Metal.MTLSizeMake(*groups),
        Metal.MTLSizeMake(*launch.local),
        waits,
    )


def _moved(part: Placed, views: Sequence[View]) -> Placed:
    """A part whose offsets are from the starts of Metal's buffers."""
    pairs = zip(views, part.offsets, strict=True)
    return replace(part, offsets=tuple(view.offset(at) for view, at in pairs))


def encode(encoder: Any, launches: Iterable[Ready]) -> None:
    """Queue launches one by one; the first needs no barrier, as encoders follow each other."""
    begun = False
    for launch in launches:
        if launch.waits and begun:
            encoder.memoryBarrierWithScope_(Metal.MTLBarrierScopeBuffers)
        begun = True
        encoder.setComputePipelineState_(launch.pipeline)
        for i, buffer in enumerate(launch.buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, i)
        encoder.setBytes_length_atIndex_(launch.block, len(launch.block), len(launch.buffers))
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(launch.groups, launch.items)
