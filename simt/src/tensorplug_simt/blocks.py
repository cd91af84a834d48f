"""Texts that decode the elements of block types, each with the tables it needs."""

from functools import cache

from tensorplug.dtypes import DType
from tensorplug_simt.dialects.dialect import read_resource


@cache
def block_text(dtype: DType) -> str:
    """The text of `decode_NAME(block, i)`, element `i` of a block; empty for element types."""
    if not dtype.is_block:
        return ""
    return read_resource(f"tensorplug_simt:kernels/blocks/{dtype.name}.k")
