"""f32 rows to stored rows: rounding to half precision, encoding of block types by `gguf`."""

from functools import cache

import numpy as np

from tensorplug.dtypes import BF16, F16, F32, F64, DType
from tensorplug.errors import Unsupported
from tensorplug.tensor import Array
from tensorplug_cpu.convert import f32_to_bf16
from tensorplug_cpu.decode import gguf_quants, gguf_type


@cache
def can_encode(dtype: DType) -> bool:
    """Whether f32 values can be turned into `dtype`."""
    if not dtype.is_block:
        return dtype.is_float
    theirs = gguf_type(dtype)
    if theirs is None:
        return False
    try:
        gguf_quants().quantize(np.zeros((1, dtype.block), np.float32), theirs)
    except NotImplementedError:
        return False
    return True


def encode_rows(dtype: DType, values: Array, out: Array) -> None:
    """Encode f32 [rows, elements] into stored rows: uint8 [rows, bytes], or numbers of `dtype`."""
    simple = _PLAIN.get(dtype)
    if simple is not None:
        simple(values, out.view(dtype.storage))
        return
    if not can_encode(dtype):
        raise Unsupported(f"cpu: values cannot be encoded as {dtype.name}")
    np.copyto(out, gguf_quants().quantize(values, gguf_type(dtype)))


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


_PLAIN = {F32: _copy, F64: _copy, F16: _copy, BF16: f32_to_bf16}
