"""Transfers of tensor data: to and from the host, and between buffers.

>>> with tp.open("cpu") as cpu:
...     w = cpu.place("w", np.zeros(3, np.float32))
...     tp.transfer.write(w, np.arange(3))
...     tp.transfer.read(w)
array([0., 1., 2.], dtype=float32)
"""

from typing import Any

import numpy as np

from tensorplug.device.backend import Backend, tell_of_move
from tensorplug.device.buffer import as_bytes, check_byte
from tensorplug.device.moving import (
    copy_bytes,
    queue_copy,
    queue_read,
    queue_write,
)
from tensorplug.device.placing import NOWHERE, host_data
from tensorplug.device.placing import read as read
from tensorplug.errors import DTypeError, ShapeError, Unsupported
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor, array_view


def write(tensor: Tensor, data: Any, bindings: Bindings = NOWHERE) -> None:
    """Copy host `data` of the tensor's shape into its memory, before returning.

    A tensor with gaps is written row by row, and the gaps are not changed. Raises ShapeError if
    there are gaps within rows and the host cannot access the memory.
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


def _write_rows(tensor: Tensor, place: Place, array: Array) -> None:
    row = tensor.dtype.row_size(tensor.ne[0])
    ordered = tensor.has_contiguous_rows and (tensor.ne[1] == 1 or tensor.nb[1] >= row)
    if not ordered or not place.buffer.type.standard_layout:
        raise ShapeError(
            f"{tensor}: its rows have gaps in {place.buffer.type.name} memory; write the tensor it "
            "is a view of"
        )
    for k, matrix in enumerate(array.reshape(-1, tensor.ne[1] * array.shape[-1])):
        i, j = divmod(k, tensor.ne[2])
        offset = place.offset + i * tensor.nb[3] + j * tensor.nb[2]
        place.buffer.write_2d(offset, matrix, row=row, stride=max(row, tensor.nb[1]))


def fill(
    tensor: Tensor,
    value: int,
    bindings: Bindings = NOWHERE,
    *,
    offset: int = 0,
    size: int | None = None,
) -> None:
    """Set `size` bytes of a contiguous tensor from byte `offset` on (by default all) to `value`.

    Raises ShapeError if the tensor has gaps or is too small, and Unsupported for a part of a tensor
    in memory with a non-standard layout.
    """
    if not tensor.is_contiguous:
        raise ShapeError(f"{tensor}: has gaps, which belong to other tensors; write() it")
    size = tensor.nbytes - offset if size is None else size
    place = _span(tensor, offset, size, "fill", bindings)
    if place.buffer.type.standard_layout:
        place.buffer.fill(value, place.offset + offset, size)
        return
    if size != tensor.nbytes:
        raise _only_whole(tensor, place, "fill")
    check_byte(value, repr(tensor))
    place.buffer.write_tensor(tensor, place.offset, as_bytes(np.full(size, value, np.uint8)))


def write_bytes(tensor: Tensor, data: memoryview | bytes | Array, offset: int = 0) -> None:
    """Copy stored bytes into the tensor's memory (gaps included) from byte `offset` on."""
    view = as_bytes(data)
    place = _part(tensor, offset, view.nbytes, "write")
    place.buffer.write(place.offset, view)


def read_bytes(tensor: Tensor, offset: int, size: int) -> Array:
    """Return `size` bytes of the tensor's memory (gaps included) from byte `offset` on."""
    place = _part(tensor, offset, size, "read")
    return place.buffer.read(place.offset, size)


def _part(tensor: Tensor, offset: int, size: int, doing: str) -> Place:
    """The place of some bytes of `tensor`. Raises Unsupported for a non-standard layout."""
    place = _span(tensor, offset, size, doing)
    if not place.buffer.type.standard_layout:
        raise _only_whole(tensor, place, doing)
    return Place(place.buffer, place.offset + offset)


def _span(
    tensor: Tensor, offset: int, size: int, doing: str, bindings: Bindings = NOWHERE
) -> Place:
    """The place of `tensor`. Raises ShapeError if bytes `offset` to `offset + size` are outside."""
    if offset < 0 or size < 0 or offset + size > tensor.nbytes:
        raise ShapeError(
            f"{tensor}: {doing} of bytes {offset} to {offset + size} is out of bounds; it has "
            f"{tensor.nbytes}"
        )
    return bindings.where(tensor)


def _only_whole(tensor: Tensor, place: Place, doing: str) -> Unsupported:
    """The error for a part of a tensor in memory with a non-standard layout."""
    return Unsupported(
        f"{tensor}: {place.buffer.type.name} keeps it in a layout of its own; {doing} all of it"
    )


def copy(
    source: Tensor,
    target: Tensor,
    source_bindings: Bindings = NOWHERE,
    target_bindings: Bindings = NOWHERE,
) -> None:
    """Copy between tensors of equal layout in any buffers. Raises ShapeError for other layouts."""
    _check_layouts(source, target)
    start, end = source_bindings.where(source), target_bindings.where(target)
    if start == end or not source.size:
        return
    if not (start.buffer.type.standard_layout and end.buffer.type.standard_layout):
        span = np.empty(source.nbytes, np.uint8)
        start.buffer.read_tensor(source, start.offset, as_bytes(span))
        end.buffer.write_tensor(target, end.offset, as_bytes(span))
    elif _has_no_gaps(source):
        copy_bytes(start, end, source.nbytes)
    else:
        # Bytes between the elements of the target belong to other tensors and are not written.
        write(target, read(source, source_bindings), target_bindings)


def _check_layouts(source: Tensor, target: Tensor) -> None:
    if not source.same_layout(target):
        raise ShapeError(
            f"copy: {source} and {target} differ in type, sizes or strides; use cpy() in a graph"
        )


# --- in order with the work of a stream ----------------------------------------------------------


def write_async(
    backend: Backend, tensor: Tensor, data: memoryview | bytes | Array, offset: int = 0
) -> None:
    """Queue a copy of `data` into the tensor's memory (gaps included) from byte `offset` on.

    The copy is in order with the work of `backend`. `data` is C-contiguous: stored bytes (`bytes`
    or uint8), or, for a tensor without gaps, elements of its type. It must stay alive and unchanged
    until the next `synchronize()` of `backend`, or until an event recorded behind the transfer is
    reached. If the stream cannot queue transfers, or the memory has a non-standard layout, this
    function waits for the stream and copies before it returns. Raises ShapeError and DTypeError;
    Unsupported for a part of a tensor in memory with a non-standard layout.
    """
    view = _stored(tensor, data, "write")
    place = _span(tensor, offset, view.nbytes, "write")
    if place.buffer.type.standard_layout:
        queue_write(backend, Place(place.buffer, place.offset + offset), view)
        return
    if view.nbytes != tensor.nbytes:
        raise _only_whole(tensor, place, "write")
    backend.synchronize()
    tell_of_move(backend, None, view, place, view.nbytes)
    place.buffer.write_tensor(tensor, place.offset, view)


def read_async(
    backend: Backend,
    tensor: Tensor,
    out: memoryview | bytearray | Array,
    offset: int = 0,
    bindings: Bindings = NOWHERE,
) -> None:
    """Queue a copy of the tensor's memory (gaps included) from byte `offset` on into all of `out`.

    The same types, lifetimes, waits and errors apply to `out` as to `data` of `write_async`.
    """
    view = _stored(tensor, out, "read")
    place = _span(tensor, offset, view.nbytes, "read", bindings)
    if place.buffer.type.standard_layout:
        queue_read(backend, Place(place.buffer, place.offset + offset), view)
        return
    if view.nbytes != tensor.nbytes:
        raise _only_whole(tensor, place, "read")
    backend.synchronize()
    tell_of_move(backend, None, place, view, view.nbytes)
    place.buffer.read_tensor(tensor, place.offset, view)


def copy_async(first: Backend, second: Backend, source: Tensor, target: Tensor) -> Backend | None:
    """Copy between tensors of equal layout, in order with the work of two streams.

    The copy starts after all work queued on `first`, and before later work of `second`, the stream
    of `target`. Returns the stream that still reads `source` in order with its work, or None if the
    source has been read.

    The host waits for `first` if the streams do not accept each other's events. It waits for
    `second` too if `second` cannot queue transfers, a memory has a non-standard layout, the host
    cannot access either memory, or the tensors have gaps. Raises ShapeError if layouts differ.
    """
    _check_layouts(source, target)
    start, end = NOWHERE.where(source), NOWHERE.where(target)
    if start == end or not source.size:
        return None
    plain = start.buffer.type.standard_layout and end.buffer.type.standard_layout
    if plain and _has_no_gaps(source):
        return queue_copy(first, second, start, end, source.nbytes)
    first.synchronize()
    second.synchronize()
    tell_of_move(second, None, start, end, source.nbytes)
    copy(source, target)
    return None


def _has_no_gaps(tensor: Tensor) -> bool:
    """True if the elements fill the tensor's memory, in any order of dimensions."""
    return tensor.nbytes == tensor.size // tensor.dtype.block * tensor.dtype.size


def _stored(tensor: Tensor, data: memoryview | bytes | bytearray | Array, doing: str) -> memoryview:
    """The stored bytes of `data`. Raises DTypeError, ShapeError."""
    kind = data.dtype if isinstance(data, np.ndarray) else np.asarray(memoryview(data)).dtype
    if kind != np.uint8:
        if kind != tensor.dtype.storage or tensor.dtype.is_block:
            raise DTypeError(
                f"{tensor}: {doing} of {kind} data; give {_wanted(tensor)}uint8 for stored bytes"
            )
        if not tensor.is_contiguous:
            raise ShapeError(
                f"{tensor}: has gaps, but the elements given do not; give stored bytes as uint8, "
                f"or {doing}() it after synchronize()"
            )
    return as_bytes(data)


def _wanted(tensor: Tensor) -> str:
    return "" if tensor.dtype.is_block else f"{tensor.dtype.storage}, or "
