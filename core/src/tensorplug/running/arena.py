"""The compute memory of a scheduler: all its schedules hold offsets into the same buffers."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from weakref import WeakSet

from tensorplug.device.buffer import Buffer, BufferType, BufferUsage
from tensorplug.errors import OutOfMemory
from tensorplug.graph.tensor import Place, Tensor
from tensorplug.planning.memory import Slot


class Arena:
    """Buffers per pool; they grow and never shrink. Plans are bound to a `generation` of them.

    It changes when a buffer grows, and when the last schedule leaves. Memory that is reserved for
    batches is here too while none of them uses it.
    """

    def __init__(self, pools: Sequence[BufferType], settle: Callable[[], None]) -> None:
        """`settle` waits for all streams that may still read the buffers, before one is freed."""
        self._settle = settle
        self.pools = tuple(pools)
        self.generation = 0
        self._chunks: list[list[Buffer]] = [[] for _ in pools]
        self._laid_out = 0
        """The generation of what lies in the buffers now."""
        self._tenants: WeakSet[object] = WeakSet()
        self._reserved: WeakSet[Buffer] = WeakSet()
        self._free: list[Buffer] = []
        """Reserved buffers that no batch uses."""

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

    def place(self, slot: Slot) -> Place:
        """Buffer and offset of a slot."""
        return Place(self._chunks[slot.pool][slot.chunk], slot.offset)

    def enter(self, tenant: object) -> None:
        """Get the buffers ready for tensors of `tenant`, which may lay them out until it leaves."""
        if self._laid_out != self.generation:
            # The tensors in the buffers are out of date: their schedules place them again.
            if self._laid_out:
                self._settle()
            for buffer in (b for chunks in self._chunks for b in chunks):
                buffer.reset()
            self._laid_out = self.generation
        self._tenants.add(tenant)

    def leave(self, tenant: object) -> None:
        """Forget the tensors of `tenant`. After the last one, the next to enter resets all."""
        if tenant in self._tenants:
            self._tenants.discard(tenant)
            if not self._tenants:
                self.generation += 1

    def size(self, kind: BufferType) -> int:
        """Bytes allocated of one buffer type, without the memory that batches use now."""
        buffers = [*self._free, *(b for chunks in self._chunks for b in chunks)]
        return sum(b.size for b in buffers if b.type is kind)

    # --- memory of batches -----------------------------------------------------------------

    @property
    def free(self) -> tuple[Buffer, ...]:
        """Reserved buffers that no batch uses."""
        return tuple(self._free)

    def take(
        self, kind: BufferType, size: int, tensors: Sequence[Tensor], *, reserve: bool
    ) -> Buffer:
        """Memory for one batch: a reserved buffer, else a new one. Raises OutOfMemory.

        A new one takes the place of a reserved one that is too small. With `reserve` it is reserved
        in any case.
        """
        waiting = sorted((b for b in self._free if b.type is kind), key=lambda b: b.size)
        fitting = next((b for b in waiting if b.size >= size), None)
        if fitting is not None:
            self._free.remove(fitting)
            fitting.reset()
            return fitting
        if waiting:
            self.release_spare(waiting[-1])
        made = kind.alloc(size, tensors=tensors)
        if reserve or waiting:
            self._reserved.add(made)
        return made

    def give(self, buffers: Iterable[Buffer]) -> None:
        """Take back memory of a batch: what is reserved waits for the next one."""
        with ExitStack() as stack:
            for buffer in buffers:
                if buffer in self._reserved and not buffer.closed:
                    self._free.append(buffer)
                else:
                    stack.callback(buffer.close)

    def release_spare(self, buffer: Buffer) -> None:
        """Release a reserved buffer that no batch uses."""
        self._free.remove(buffer)
        buffer.close()

    def release(self) -> None:
        """Release all buffers."""
        free, self._free = self._free, []
        with ExitStack() as stack:
            for buffer in free:
                stack.callback(buffer.close)
            for chunks in self._chunks:
                for buffer in chunks:
                    stack.callback(buffer.close)
                chunks.clear()

    def _renew(self, pool: int, chunk: int, size: int) -> None:
        kind, old = self.pools[pool], self._chunks[pool][chunk]
        former = old.size
        # Plans bound to the old buffer must be bound again, also if this fails half-way.
        self.generation += 1
        self._settle()
        old.close()
        try:
            self._chunks[pool][chunk] = kind.alloc(size, BufferUsage.COMPUTE)
        except BaseException as error:
            self._restore(pool, chunk, former)
            if not isinstance(error, OutOfMemory):
                raise
            raise OutOfMemory(
                f"{kind.name}: the compute buffer cannot grow from {former} to {size} bytes "
                f"({error}); use a smaller batch or context, or put layers on another device"
            ) from error

    def _restore(self, pool: int, chunk: int, size: int) -> None:
        """Allocate a closed chunk again; drop it and all later ones if that fails, too."""
        chunks = self._chunks[pool]
        try:
            chunks[chunk] = self.pools[pool].alloc(size, BufferUsage.COMPUTE)
        except BaseException:
            later = chunks[chunk + 1 :]
            del chunks[chunk:]
            with ExitStack() as stack:
                for buffer in later:
                    stack.callback(buffer.close)
            raise
