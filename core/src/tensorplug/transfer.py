"""Data of tensors: to and from the host, and between any two buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorplug.backend import (
    Backend,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    order_after,
    read_async,
    tell_of_move,
    write_async,
)
from tensorplug.buffer import Buffer, as_bytes
from tensorplug.errors import ShapeError, Unsupported, blaming
from tensorplug.graph import Bindings
from tensorplug.placing import host_data
from tensorplug.tensor import Array, Storage, Tensor, array_view

_NOWHERE = Bindings()


def write(tensor: Tensor, data: Any, bindings: Bindings = _NOWHERE) -> None:
    """Copy host `data` of the tensor's shape into its memory; done when this returns.

    A tensor with gaps takes it row by row and leaves the gaps as they are. Raises ShapeError where
    the elements of a row have gaps in memory that the host cannot see.
    """
    place = bindings.where(tensor)
    array = host_data(tensor, data)
    if not tensor.size:
        return
    if tensor.is_contiguous:
        place.buffer.write_tensor(tensor, place.offset, as_bytes(array))
    elif place.buffer.type.is_host:
        array_view(tensor, place.buffer.host(), place.offset)[...] = array
    else:
        _write_rows(tensor, place, array)


def _write_rows(tensor: Tensor, place: Storage, array: Array) -> None:
    row = tensor.dtype.row_size(tensor.ne[0])
    ordered = tensor.has_contiguous_rows and (tensor.ne[1] == 1 or tensor.nb[1] >= row)
    if not ordered or not has_standard_layout(place.buffer):
        raise ShapeError(
            f"{tensor}: its rows have gaps in {place.buffer.type.name} memory; write the tensor it "
            "is a view of"
        )
    for k, matrix in enumerate(array.reshape(-1, tensor.ne[1] * array.shape[-1])):
        i, j = divmod(k, tensor.ne[2])
        offset = place.offset + i * tensor.nb[3] + j * tensor.nb[2]
        place.buffer.write_2d(offset, matrix, row=row, stride=max(row, tensor.nb[1]))


def read(tensor: Tensor, bindings: Bindings = _NOWHERE) -> Array:
    """Return a copy of the tensor's data, shaped as `Tensor.numpy` shapes it."""
    place = bindings.where(tensor)
    span = np.empty(tensor.nbytes, np.uint8)
    if tensor.size:
        place.buffer.read_tensor(tensor, place.offset, as_bytes(span))
    view = array_view(tensor, span, 0)
    return view if tensor.is_contiguous else np.ascontiguousarray(view)


def fill(tensor: Tensor, value: int, bindings: Bindings = _NOWHERE) -> None:
    """Set every byte of a contiguous tensor to `value`. Raises ShapeError where it has gaps."""
    if not tensor.is_contiguous:
        raise ShapeError(f"{tensor}: has gaps, which belong to others; write() it")
    place = bindings.where(tensor)
    place.buffer.fill(value, place.offset, tensor.nbytes)


def write_bytes(
    tensor: Tensor,
    data: memoryview | bytes | Array,
    offset: int = 0,
    bindings: Bindings = _NOWHERE,
) -> None:
    """Copy stored bytes into the tensor's memory span, from byte `offset` of it on."""
    view = as_bytes(data)
    place = _part(tensor, offset, view.nbytes, "write", bindings)
    place.buffer.write(place.offset, view)


def read_bytes(tensor: Tensor, offset: int, size: int, bindings: Bindings = _NOWHERE) -> Array:
    """Return `size` stored bytes of the tensor's memory span, from byte `offset` of it on."""
    place = _part(tensor, offset, size, "read", bindings)
    return place.buffer.read(place.offset, size)


def _part(tensor: Tensor, offset: int, size: int, doing: str, bindings: Bindings) -> Storage:
    if offset < 0 or size < 0 or offset + size > tensor.nbytes:
        raise ShapeError(
            f"{tensor}: {doing} of bytes {offset} to {offset + size} is out of bounds; it has "
            f"{tensor.nbytes}"
        )
    place = bindings.where(tensor)
    if not has_standard_layout(place.buffer):
        raise Unsupported(
            f"{tensor}: {place.buffer.type.name} keeps it in a layout of its own; {doing} all of it"
        )
    return Storage(place.buffer, place.offset + offset)


def copy_bytes(source: Storage, target: Storage, size: int) -> None:
    """Copy `size` bytes between any two buffers, through the host where there is no shorter way."""
    if source == target or not size:
        return
    source.buffer._check(source.offset, size, "copy")
    target.buffer._check(target.offset, size, "copy")
    with blaming(target.buffer.type.device):
        if target.buffer._copy_from(source.buffer, source.offset, target.offset, size):
            return
    if source.buffer.type.is_host:
        host = source.buffer.host()[source.offset : source.offset + size]
        target.buffer.write(target.offset, host)
    elif target.buffer.type.is_host:
        host = target.buffer.host()[target.offset : target.offset + size]
        source.buffer.read_into(source.offset, host)
    else:
        target.buffer.write(target.offset, source.buffer.read(source.offset, size))


def copy(
    source: Tensor,
    target: Tensor,
    source_bindings: Bindings = _NOWHERE,
    target_bindings: Bindings = _NOWHERE,
) -> None:
    """Copy between tensors of one layout, any buffers. Raises ShapeError where layouts differ."""
    _check_layouts(source, target)
    start, end = source_bindings.where(source), target_bindings.where(target)
    if start == end or not source.size:
        return
    if not (has_standard_layout(start.buffer) and has_standard_layout(end.buffer)):
        span = np.empty(source.nbytes, np.uint8)
        start.buffer.read_tensor(source, start.offset, as_bytes(span))
        end.buffer.write_tensor(target, end.offset, as_bytes(span))
    elif source.nbytes == source.size // source.dtype.block * source.dtype.size:
        copy_bytes(start, end, source.nbytes)
    else:
        # What lies between the elements of the target is not the source's to write.
        write(target, read(source, source_bindings), target_bindings)


def has_standard_layout(buffer: Buffer) -> bool:
    """Whether tensors lie in `buffer` byte for byte as their strides say."""
    return type(buffer).write_tensor is Buffer.write_tensor


def copy_async(
    source: Backend,
    target: Backend,
    start: Storage,
    end: Storage,
    size: int,
    staging: Callable[[int], Array] | None = None,
) -> Backend | None:
    """Copy after all work queued on `source`, before any queued later on `target`.

    Return the stream that reads `start` in order with its work, or None where that is done. Where
    the two know no events of each other, the host waits for `source`; for the target too where it
    cannot queue transfers. `staging` gives so many bytes of host memory to a copy between two
    memories that the host does not see, and keeps them until both streams were waited for; without
    it such a copy waits for both.
    """
    with blaming(target.device):
        queued = isinstance(target, SupportsAsyncCopy) and target.copy_async(
            source, start, end, size
        )
    if queued:
        for watch in target.watches:
            watch.ordered(source, target)
        tell_of_move(target, target, start, end, size)
        return target
    start.buffer._check(start.offset, size, "copy")
    end.buffer._check(end.offset, size, "copy")
    if isinstance(target, SupportsAsyncTransfer) and start.buffer.type.is_host:
        order_after(source, target)
        tell_of_move(target, target, start, end, size)
        with blaming(target.device):
            target.write_async(end.buffer, end.offset, _host_span(start, size))
        return target
    if isinstance(target, SupportsAsyncTransfer) and staging is not None:
        between = staging(size)
        read_async(source, start, between)
        order_after(source, target)
        write_async(target, end, between)
        return source
    if isinstance(source, SupportsAsyncTransfer) and end.buffer.type.is_host:
        order_after(target, source)
        tell_of_move(source, source, start, end, size)
        with blaming(source.device):
            source.read_async(start.buffer, start.offset, _host_span(end, size))
        order_after(source, target)
        return source
    source.synchronize()
    target.synchronize()
    tell_of_move(target, None, start, end, size)
    copy_bytes(start, end, size)
    return None


def _host_span(place: Storage, size: int) -> memoryview:
    return as_bytes(place.buffer.host()[place.offset : place.offset + size])


def _check_layouts(source: Tensor, target: Tensor) -> None:
    if not source.same_layout(target):
        raise ShapeError(
            f"copy: {source} and {target} differ in type, sizes or strides; use cpy() in a graph"
        )
