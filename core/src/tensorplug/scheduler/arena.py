"""The compute memory of a scheduler: all its schedules hold offsets into the same buffers."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tensorplug.allocator import Slot
from tensorplug.buffer import Buffer, BufferType, BufferUsage
from tensorplug.errors import OutOfMemory
from tensorplug.tensor import Storage


class Arena:
    """Buffers per pool; they grow and never shrink. `generation` counts the growths."""

    def __init__(self, pools: Sequence[BufferType], settle: Callable[[], None]) -> None:
        """`settle` waits for all who may still read the buffers, before one is freed."""
        self._settle = settle
        self.pools = tuple(pools)
        self.generation = 0
        self._chunks: list[list[Buffer]] = [[] for _ in pools]

    def grow(self, sizes: Sequence[Sequence[int]]) -> None:
        """Make every chunk at least as large as asked for.

        Raises OutOfMemory; the arena then has its former sizes, or none where even those are gone.
        """
        for pool, wanted in enumerate(sizes):
            for chunk, size in enumerate(wanted):
                have = self._chunks[pool]
                if chunk >= len(have):
                    have.append(self.pools[pool].alloc(size, BufferUsage.COMPUTE))
                    self.generation += 1
                elif have[chunk].size < size:
                    self._renew(pool, chunk, size)

    def fits(self, sizes: Sequence[Sequence[int]]) -> bool:
        """Whether a memory map of these sizes needs no growth."""
        return all(
            len(wanted) <= len(have)
            and all(b.size >= size for b, size in zip(have, wanted, strict=False))
            for have, wanted in zip(self._chunks, sizes, strict=True)
        )

    def place(self, slot: Slot) -> Storage:
        """Buffer and offset of a slot."""
        return Storage(self._chunks[slot.pool][slot.chunk], slot.offset)

    def size(self, kind: BufferType) -> int:
        """Bytes allocated of one buffer type."""
        return sum(b.size for chunks in self._chunks for b in chunks if b.type is kind)

    def close(self) -> None:
        """Free everything."""
        with ExitStack() as stack:
            for chunks in self._chunks:
                for buffer in chunks:
                    stack.callback(buffer.close)
                chunks.clear()

    def _renew(self, pool: int, chunk: int, size: int) -> None:
        kind, old = self.pools[pool], self._chunks[pool][chunk]
        former = old.size
        # Whoever is bound to the old buffer must look again, also when this fails half-way.
        self.generation += 1
        self._settle()
        old.close()
        try:
            self._chunks[pool][chunk] = kind.alloc(size, BufferUsage.COMPUTE)
        except OutOfMemory as error:
            del self._chunks[pool][chunk:]
            self._chunks[pool].append(kind.alloc(former, BufferUsage.COMPUTE))
            raise OutOfMemory(
                f"{kind.name}: the compute buffer cannot grow from {former} to {size} bytes "
                f"({error}); use a smaller batch or context, or put layers on another device"
            ) from error
