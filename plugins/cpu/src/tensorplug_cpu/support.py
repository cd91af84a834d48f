"""What the kernels can do, and why not."""

from collections.abc import Mapping

from tensorplug.blocks.rows import can_decode
from tensorplug.device import BufferType, Tensor
from tensorplug.dtypes import F32
from tensorplug.ops.custom import CALLING
from tensorplug.ops.table import OPS
from tensorplug_cpu.encode import can_encode
from tensorplug_cpu.kernels import KERNELS
from tensorplug_cpu.memory import ExpandedBufferType

_BYTE_COPIES = frozenset({"dup", "cont", "cpy"})
"""Ops that move stored bytes where both types are the same."""


def refusal(node: Tensor, source_types: Mapping[Tensor, BufferType]) -> str:
    """Why `node` cannot be computed; empty if it can."""
    if node.op not in KERNELS and (node.op not in OPS or OPS[node.op].reference is None):
        return f"no kernel for {node.op}"
    if node.op in CALLING:
        return next(filter(None, (_expanded(node, s, source_types) for s in node.sources)), "")
    if _copies_bytes(node):
        copied = node.sources[0]
        return _expanded(node, copied, source_types) or _expanded_write(node, source_types)
    return _undecodable(node) or _unencodable(node) or _expanded_write(node, source_types)


def _copies_bytes(node: Tensor) -> bool:
    return node.op in _BYTE_COPIES and node.sources[0].dtype is node.dtype


def _undecodable(node: Tensor) -> str:
    for source in node.sources:
        if node.writes and source.root is node.root:
            continue  # written, not read
        if source.dtype.is_block and not can_decode(source.dtype):
            return f"{node.op}: no decoder for {source.dtype.name}"
    return ""


def _unencodable(node: Tensor) -> str:
    if node.dtype.is_block and not can_encode(node.dtype):
        return f"{node.op}: no encoder for {node.dtype.name}"
    return ""


def _expanded_write(node: Tensor, source_types: Mapping[Tensor, BufferType]) -> str:
    for root in node.written_roots:
        if isinstance(memory_of(root, source_types), ExpandedBufferType):
            return f"{node.op}: cannot write into {root}, which is stored expanded to f32"
    return ""


def _expanded(node: Tensor, source: Tensor, source_types: Mapping[Tensor, BufferType]) -> str:
    if source.dtype is F32:
        return ""
    if isinstance(memory_of(source, source_types), ExpandedBufferType):
        return f"{node.op}: the {source.dtype.name} data of {source} is stored expanded to f32"
    return ""


def memory_of(tensor: Tensor, source_types: Mapping[Tensor, BufferType]) -> BufferType | None:
    """In which memory `tensor` lies, where that is known."""
    known = source_types.get(tensor) or source_types.get(tensor.root)
    if known is None and tensor.root.place is not None:
        return tensor.root.place.buffer.type
    return known
