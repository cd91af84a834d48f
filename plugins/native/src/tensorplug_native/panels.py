"""Weights in panels: sixteen rows side by side, as products with rounded rows read them fastest."""

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorplug.device import (
    Array,
    Buffer,
    BufferType,
    BufferUsage,
    Layout,
    Tensor,
    Unsupported,
    array_view,
)
from tensorplug.dtypes import DType
from tensorplug_cpu.memory import ALIGNMENT, LARGEST, aligned
from tensorplug_cpu.operand import Operand, OwnLayoutBuffer
from tensorplug_cpu.plan import Look
from tensorplug_cpu.support import memory_of
from tensorplug_cpu.threads import Step, Workers, split
from tensorplug_native.library import library
from tensorplug_native.program import PANEL_ROWS, PanelOperand, address
from tensorplug_native.rules import PACKABLE

if TYPE_CHECKING:
    from tensorplug.device import Device

ALONE = 1 << 22
"""Bytes below which waking a second thread takes longer than it helps."""

READERS = {"mul_mat": "w", "get_rows": "x"}
"""Ops that read panels, and as which source."""


class PanelBufferType(BufferType):
    """Matrices of block types, their rows in panels. A tensor takes as many bytes as elsewhere.

    `cpp/panels.h` describes the layout; blocks are kept bit by bit.
    """

    name = "cpu_panels"
    layout = Layout.PACKED
    alignment = ALIGNMENT
    max_size = LARGEST

    def __init__(
        self, device: "Device", workers: Workers, preferred: Callable[[Tensor], bool]
    ) -> None:
        super().__init__(device)
        self.workers = workers
        self._preferred = preferred

    def prefers(self, weights: Tensor) -> bool:
        return self.supports(weights) and self._preferred(weights)

    def supports(self, tensor: Tensor) -> bool:
        is_matrix = tensor.is_leaf and tensor.is_contiguous and tensor.ne[2:] == (1, 1)
        return is_matrix and tensor.dtype in PACKABLE and tensor.ne[1] % PANEL_ROWS == 0

    def _alloc(self, size: int, usage: BufferUsage) -> Buffer:
        return PanelBuffer(self, in_small_pages(size), usage)


class PanelBuffer(OwnLayoutBuffer):
    """Memory in which weights lie in panels."""

    type: PanelBufferType

    def host(self) -> Array:
        raise Unsupported(
            f"{self!r}: holds rows side by side, not tensors in their own layout; "
            "transfer.read() gives weights back as they were"
        )

    def operand(self, tensor: Tensor, offset: int) -> Operand:
        self.check_open()
        if not self.type.supports(tensor):
            raise Unsupported(
                f"{self!r}: {tensor} is a part of weights that lie in panels; place them in 'cpu' "
                "memory to take parts of them"
            )
        array: Array = array_view(tensor, self._memory, offset)
        return PanelOperand(array.reshape((1,) * (4 - array.ndim) + array.shape), tensor.dtype)

    def write_tensor(self, tensor: Tensor, offset: int, data: memoryview) -> None:
        if not self.type.supports(tensor):
            raise Unsupported(
                f"{self!r}: cannot hold {tensor}; it takes matrices of block types whose rows are "
                f"a multiple of {PANEL_ROWS}; use 'cpu' memory"
            )
        self._check(offset, tensor.nbytes, "write")
        rows = np.frombuffer(data, np.uint8)
        panels = self._memory[offset : offset + tensor.nbytes]
        self.type.workers.run(
            [
                partial(pack, tensor.dtype, tensor.ne[0], rows[start:stop], panels[start:stop])
                for start, stop in _shares(tensor, self.type.workers.count)
            ]
        )

    def read_tensor(self, tensor: Tensor, offset: int, out: memoryview) -> None:
        root, start = tensor.root, offset - tensor.view_offset
        self._check(start, root.nbytes, "read")
        rows = np.empty(root.nbytes, np.uint8)
        unpack(root.dtype, root.ne[0], self._memory[start : start + root.nbytes], rows)
        np.frombuffer(out, np.uint8)[:] = rows[tensor.view_offset :][: out.nbytes]


class InRows:
    """`look`, with weights in panels as copies in rows, for kernels that know no panels.

    `refresh` brings the copies up to date; it is to be run before the kernels are, again and again.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._known: dict[Tensor, Operand] = {}
        self.refresh: list[Step] = []

    def __call__(self, tensor: Tensor) -> Operand:
        found = self._known.get(tensor) or self._look(tensor)
        if not isinstance(found, PanelOperand):
            return found
        panels = found.array.reshape(-1)
        rows = aligned(panels.size)
        self.refresh.append(partial(unpack, tensor.dtype, tensor.ne[0], panels, rows))
        self.refresh[-1]()
        self._known[tensor] = Operand(rows.reshape(found.array.shape), tensor.dtype)
        return self._known[tensor]


def refusal(node: Tensor, source_types: Mapping[Tensor, BufferType]) -> str:
    """Why `node` cannot read the weights that lie in panels; empty if it can, or reads none."""
    for place, source in enumerate(node.sources):
        if not isinstance(memory_of(source, source_types), PanelBufferType):
            continue
        if READERS.get(node.op) is None or place or source.is_view:
            ops = " and ".join(READERS)
            return f"{node.op}: {source} lies in panels, which only {ops} read, and whole"
    return ""


def pack(dtype: DType, row: int, rows: Array, panels: Array) -> None:
    """Bring rows of `row` elements, a multiple of PANEL_ROWS of them, into panels."""
    _convert(library().pack, dtype, row, rows, panels)


def unpack(dtype: DType, row: int, panels: Array, rows: Array) -> None:
    """Bring panels back into rows of `row` elements."""
    _convert(library().unpack, dtype, row, panels, rows)


def in_small_pages(size: int) -> Array:
    """`size` bytes that the system is not asked to give in huge pages, as NumPy does.

    A token took up to a tenth less time with huge pages, and loading twice as long: on a virtual
    machine the first touch of them took 3 s for a GiB, where its host must find the memory, and
    0.13 s when they had been used before. Small pages took 0.55 s each time, more than the packing.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return aligned(size)
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapped, np.uint8)


def _convert(function: Any, dtype: DType, row: int, source: Array, target: Array) -> None:
    panels = source.size // (dtype.row_size(row) * PANEL_ROWS)
    if not function(dtype.id, address(source), row, panels, address(target)):
        raise Unsupported(f"tensorplug-native: rows of {row} {dtype.name} have no panels")


def _shares(tensor: Tensor, count: int) -> list[tuple[int, int]]:
    """Bytes from and to, of whole panels, for each of at most `count` threads."""
    count = count if tensor.nbytes >= ALONE else 1
    size = tensor.nb[1] * PANEL_ROWS
    return [(start * size, stop * size) for start, stop in split(tensor.ne[1] // PANEL_ROWS, count)]
