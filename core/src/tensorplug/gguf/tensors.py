"""`read_tensors`: the tensor records of a GGUF file, checked against the file's size."""

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType

from tensorplug.dtypes import REMOVED_IDS, DType, dtype
from tensorplug.errors import DTypeError
from tensorplug.gguf.cursor import CONVERT_AGAIN, UPDATE, Cursor, quote
from tensorplug.gguf.tensorfile import FileTensor
from tensorplug.graph.tensor import MAX_RANK

MIN_INFO_SIZE = 32
"""Bytes of the smallest tensor record: a name of length 0, one dimension, a type, an offset."""


def read_tensors(cursor: Cursor, count: int, alignment: int) -> Mapping[str, FileTensor]:
    """Read `count` tensor records at the cursor; tensor data follows them. Raises FormatError."""
    relative = [_read_info(cursor, index) for index in range(count)]
    data = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, FileTensor] = {}
    for info in relative:
        if info.name in tensors:
            raise cursor.error(f"tensor {quote(info.name)} is there twice", CONVERT_AGAIN)
        tensors[info.name] = _place(cursor, info, data, alignment)
    _check_overlaps(cursor, tensors)
    return MappingProxyType(tensors)


def _read_info(cursor: Cursor, index: int) -> FileTensor:
    """Read one record; its offset is still relative to the data."""
    name = cursor.name(f"the name of tensor {index}")
    what = f"tensor {quote(name)}"
    rank = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= rank <= MAX_RANK:
        raise cursor.error(f"{what} has {rank} dimensions, and 1 to {MAX_RANK} are allowed")
    sizes = [cursor.u64(f"dimension {axis} of {what}") for axis in range(rank)]
    if 0 in sizes:
        raise cursor.error(f"{what} has the dimensions {sizes}, and none may be 0", CONVERT_AGAIN)
    kind = _dtype(cursor, cursor.u32(f"the type of {what}"), what)
    if sizes[0] % kind.block:
        raise cursor.error(
            f"{what} has rows of {sizes[0]} elements, not a multiple of the block length "
            f"{kind.block} of {kind.name}",
            CONVERT_AGAIN,
        )
    offset = cursor.u64(f"the offset of {what}")
    first, second, third, fourth = (*sizes, 1, 1, 1)[:MAX_RANK]
    # Python's integers do not overflow, so an absurd size is larger than the file and is rejected.
    nbytes = math.prod(sizes) // kind.block * kind.size
    return FileTensor(name, kind, (first, second, third, fourth), rank, offset, nbytes)


def _dtype(cursor: Cursor, number: int, what: str) -> DType:
    try:
        return dtype(number)
    except DTypeError as error:
        if number in REMOVED_IDS:
            removed = f"{what} is of type {number}, which was removed from the format"
            raise cursor.error(removed, CONVERT_AGAIN) from error
        raise cursor.error(f"{what} is of the unknown type {number}", UPDATE) from error


def _place(cursor: Cursor, info: FileTensor, data: int, alignment: int) -> FileTensor:
    what = f"tensor {quote(info.name)}"
    if info.offset % alignment:
        raise cursor.error(
            f"{what} begins at {info.offset}, not a multiple of the file's alignment {alignment}",
            CONVERT_AGAIN,
        )
    placed = FileTensor(info.name, info.dtype, info.ne, info.rank, data + info.offset, info.nbytes)
    if placed.end > cursor.size:
        sizes = " x ".join(map(str, info.ne[: info.rank]))
        raise cursor.error(
            f"{what} ({sizes}, {info.dtype.name}) needs {info.nbytes} bytes at offset "
            f"{placed.offset}, and {max(cursor.size - placed.offset, 0)} are left"
        )
    return placed


def _check_overlaps(cursor: Cursor, tensors: Mapping[str, FileTensor]) -> None:
    by_offset = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for one, other in itertools.pairwise(by_offset):
        if other.offset < one.end:
            raise cursor.error(
                f"tensors {quote(one.name)} and {quote(other.name)} overlap: one is the bytes "
                f"{one.offset} to {one.end}, the other begins at {other.offset}",
                CONVERT_AGAIN,
            )
