"""f32 rows to stored rows: rounding to half precision, block types by our encoders or `gguf`."""

from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np

from tensorplug.blocks.half import f32_to_bf16
from tensorplug.blocks.rows import gguf_quants, gguf_type
from tensorplug.device import Array, Unsupported
from tensorplug.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    MXFP4,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    TQ1_0,
    TQ2_0,
    DType,
)
from tensorplug.errors import ShapeError

CHUNK = 1 << 16
"""Elements that are encoded at a time: a search holds some ten arrays of that length."""

PACKAGED = frozenset({Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0, MXFP4})
"""Types that `gguf` encodes as ggml does. Some have an encoder of our own for use with weights."""


@cache
def can_encode(dtype: DType, *, importance: bool = False) -> bool:
    """Whether f32 values can be turned into `dtype`, by themselves or weighed by `importance`."""
    if not dtype.is_block:
        return dtype.is_float
    searches = _searches()
    if dtype in searches.NEEDS_IMPORTANCE and not importance:
        return False
    return dtype in PACKAGED or dtype in searches.ENCODERS


def encode_rows(dtype: DType, values: Array, out: Array, importance: Array | None = None) -> None:
    """Encode f32 [rows, elements] into stored rows: uint8 [rows, bytes], or numbers of `dtype`.

    `importance`, f32 [elements], weighs the errors of each column; formats whose blocks depend
    only on their values ignore it. Raises Unsupported, and ShapeError for an importance of
    another length.
    """
    simple = _PLAIN.get(dtype)
    if simple is not None:
        simple(values, out.view(dtype.storage))
        return
    if not can_encode(dtype, importance=True):
        raise Unsupported(f"cpu: values cannot be encoded as {dtype.name}")
    if importance is not None and importance.shape != values.shape[1:]:
        raise ShapeError(
            f"cpu: importance of {importance.size} values for rows of {values.shape[1]} elements; "
            "give one value per column"
        )
    if dtype not in _searches().ENCODERS or (dtype in PACKAGED and importance is None):
        np.copyto(out, gguf_quants().quantize(values, gguf_type(dtype)))
        return
    _search(dtype, values, out, importance)


def _searches() -> ModuleType:
    """The encoders that search for codes."""
    # Here, because their tables take 20 ms to make, and few programs write block types.
    from tensorplug_cpu import encoders  # noqa: PLC0415

    return encoders


def _search(dtype: DType, values: Array, out: Array, importance: Array | None) -> None:
    """Encode with the searches, some whole rows or a part of one long row at a time."""
    searches = _searches()
    encoder = searches.ENCODERS[dtype]
    # A wild value, infinite or not a number, spoils its own block only, in silence as in ggml.
    with np.errstate(all="ignore"):
        for rows, part in _pieces(len(values), values.shape[1], dtype.block):
            chunk = np.ascontiguousarray(values[rows, part], np.float32)
            weights = None
            if importance is not None:
                weights = np.broadcast_to(importance[part].astype(np.float32), chunk.shape)
                if dtype in searches.ROW_WEIGHTS:
                    weights = searches.ROW_WEIGHTS[dtype](values[rows], chunk, weights)
                weights = weights.reshape(-1, dtype.block)
            blocks = encoder(chunk.reshape(-1, dtype.block), weights)
            start, stop = (place // dtype.block * dtype.size for place in (part.start, part.stop))
            out[rows, start:stop] = blocks.reshape(len(chunk), stop - start)


def _pieces(rows: int, elements: int, block: int) -> Iterator[tuple[slice, slice]]:
    """Cut rows x elements into pieces of about `CHUNK` elements: which rows, which columns."""
    wide = min(elements, CHUNK // block * block)
    high = max(1, CHUNK // max(wide, 1))
    for row in range(0, rows, high):
        for start in range(0, elements, wide):
            yield (
                slice(row, min(row + high, rows)),
                slice(start, min(start + wide, elements)),
            )


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


_PLAIN = {F32: _copy, F64: _copy, F16: _copy, BF16: f32_to_bf16}
