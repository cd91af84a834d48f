"""`KVCache`: keys and values of the tokens seen so far, on the device of their layer."""

from collections.abc import Mapping, Sequence

import tensorplug as tp
from tensorplug import BufferType, DType, MultiBuffer, Tensor
from tensorplug.device import Resource, allocate
from tensorplug.graph.tensor import leaf

SMALLEST_REACH = 256
"""Positions that the smallest attention graph looks at."""


def reaches(context: int) -> tuple[int, ...]:
    """How many positions the attention graphs look at: powers of two, and the context itself."""
    found = []
    reach = SMALLEST_REACH
    while reach < context:
        found.append(reach)
        reach *= 2
    return (*found, context)


class KVCache(Resource):
    """Keys and values of each layer, one row per token, for `context` tokens.

    One more row takes what the padding of a batch writes; nobody reads it. `homes` gives the memory
    of each layer and `dtypes` the element type in it.
    """

    def __init__(
        self,
        rows: tuple[int, int],
        context: int,
        homes: Sequence[BufferType],
        dtypes: Mapping[BufferType, DType],
    ) -> None:
        """Allocate zeros; `rows` are elements of a token's keys and values. Raises OutOfMemory."""
        super().__init__()
        self.context = context
        self.padding_row = context
        self._buffers: list[MultiBuffer] = []
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        try:
            for home in dict.fromkeys(homes):
                layers = [i for i, h in enumerate(homes) if h is home]
                self._allocate(layers, rows, home, dtypes[home])
        except BaseException:
            self.close()
            raise

    def write(self, layer: int, keys: Tensor, values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows of new tokens, f32 [row, tokens], at i32 rows `at`; return the two effects."""
        return (
            tp.set_rows(self.keys[layer], keys, at, name=f"cache_k.{layer}.write"),
            tp.set_rows(self.values[layer], values, at, name=f"cache_v.{layer}.write"),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(buffer.size for buffer in self._buffers)

    def _allocate(
        self, layers: Sequence[int], rows: tuple[int, int], home: BufferType, dtype: DType
    ) -> None:
        specs = [
            leaf(f"cache_{kind}.{i}", (self.context + 1, size), dtype)
            for i in layers
            for kind, size in zip("kv", rows, strict=True)
        ]
        placed, buffer = allocate(specs, home)
        self._buffers.append(buffer)
        # Attention multiplies masked rows by zero, which must not meet the NaN of fresh memory.
        buffer.fill(0)
        self.keys.update(zip(layers, placed[::2], strict=True))
        self.values.update(zip(layers, placed[1::2], strict=True))

    def _close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.keys)} layers of {self.context} tokens"
        return f"<KVCache {state}>"


def by_head(table: Tensor, heads: int, reach: int) -> Tensor:
    """View the first `reach` rows of `table` [heads * n, rows] as [n, reach, heads]."""
    length = table.ne[0] // heads
    steps = (table.nb[1], table.dtype.row_size(length))
    return tp.view(table, (length, reach, heads), nb=steps)
