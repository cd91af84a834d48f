"""`KVCache`: keys and values of tokens in pages of rows; `PagePool`: which pages are in use.

`States`: what recurrent layers keep of texts.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import tensorplug as tp
from tensorplug import Backend, DType, Tensor
from tensorplug.device import Buffer, BufferType, MultiBuffer, Resource, allocate, as_bytes, leaf
from tensorplug.dtypes import F16, F32, IQ4_NL, Q4_0, Q5_1, Q8_0
from tensorplug.errors import OptionError
from tensorplug_llm.hparams import HParams, Recurrence
from tensorplug_llm.rotation import Floats, hadamard

PAGE = 64
"""Rows of a page: kernels skip blocks of this size that no token of theirs sees."""
MOST_ROWS = (1 << 31) - PAGE
"""Rows of a cache: their numbers, and that of the row for padding, are i32."""
SMALLEST_REACH = 512
"""Rows that the smallest attention graph looks at."""
KV_TYPES = {t.name: t for t in (F16, F32, Q8_0, Q5_1, Q4_0, IQ4_NL)}
"""Types of keys and values."""


def pages_of(tokens: int) -> int:
    """Pages that hold `tokens` rows."""
    return -(-tokens // PAGE)


def reaches(rows: int) -> tuple[int, ...]:
    """How many rows the attention graphs look at: `rows`, a quarter of them, and so on."""
    found = [rows]
    while found[-1] // 4 >= SMALLEST_REACH:
        found.append(pages_of(found[-1] // 4) * PAGE)
    return tuple(found[::-1])


def kv_type(name: str) -> DType:
    """The type of keys and values of this name. Raises OptionError."""
    if name not in KV_TYPES:
        *others, last = KV_TYPES
        raise OptionError(
            f"kv: {name!r} is not a type of the cache; choose {', '.join(others)} or {last}"
        )
    return KV_TYPES[name]


def cache_types(
    hp: HParams, layers: Iterable[Backend], kv: DType | None
) -> dict[BufferType, DType]:
    """The type of the cache in each kind of memory: `kv`, or what the backend prefers.

    Raises OptionError for a `kv` whose blocks do not make whole heads.
    """
    if kv is not None:
        kv_type(kv.name)
    if kv is not None and hp.attention_layers:
        for kind, length in (("keys", hp.key_length), ("values", hp.value_length)):
            if length % kv.block:
                raise OptionError(
                    f"kv: {kv.name} has blocks of {kv.block} elements, and heads of {kind} of this "
                    f"model have {length}, which do not divide into blocks; choose f16 or f32"
                )
    return {b.buffer_type: kv or (F16 if b.prefers_f16 else F32) for b in layers}


class PagePool:
    """Counts how many sequences and prefixes hold each page; low numbers are handed out first.

    Attention looks at all rows up to the highest page in use.
    """

    def __init__(self, pages: int) -> None:
        self.holders = [0] * pages
        self.spare = 0
        """Pages that only a prefix holds."""
        self._known = [False] * pages
        """Whether a prefix holds each page."""
        self._free = list(range(pages))

    @property
    def free(self) -> int:
        """Pages without a holder."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages with a holder."""
        return len(self.holders) - len(self._free)

    def take(self) -> int:
        """Return a free page, held once; there must be one."""
        page = heapq.heappop(self._free)
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Let one more hold a page in use."""
        self.spare -= self._known[page] and self.holders[page] == 1
        self.holders[page] += 1

    def know(self, page: int) -> None:
        """Let a prefix hold a page in use."""
        self.hold(page)
        self._known[page] = True

    def forget(self, page: int) -> None:
        """Let the prefix of a page hold it no more."""
        self.spare -= self.holders[page] == 1
        self._known[page] = False
        self.give((page,))

    def give(self, pages: Iterable[int]) -> None:
        """Let one fewer hold each of these pages."""
        for page in pages:
            self.holders[page] -= 1
            self.spare += self._known[page] and self.holders[page] == 1
            if not self.holders[page]:
                heapq.heappush(self._free, page)


class Tables(Resource):
    """Tensors of layers that passes read and write; zeros at first.

    `make` makes their buffers, if given.
    """

    def __init__(self, make: Callable[[BufferType, int], Buffer] | None = None) -> None:
        super().__init__()
        self._buffers: list[MultiBuffer] = []
        self._make = make

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(self.sizes.values())

    @property
    def sizes(self) -> dict[BufferType, int]:
        """Bytes of the layers in each kind of memory."""
        found = Counter[BufferType]()
        for buffer in self._buffers:
            found.update(buffer.held)
        return found

    def _place(self, specs: Sequence[Tensor], home: BufferType) -> Sequence[Tensor]:
        """Allocate tensors in `home`. Raises OutOfMemory."""
        make = self._make
        alloc = None if make is None else lambda size, _tensors: make(home, size)
        placed, buffer = allocate(specs, home, alloc=alloc)
        self._buffers.append(buffer)
        # Attention multiplies masked rows by zero, which must not meet the NaN of fresh memory.
        if not home.fresh_is_zero:
            buffer.fill(0)
        return placed

    def _close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []


class KVCache(Tables):
    """Keys and values of layers in `pages` pages of PAGE rows, one row per token.

    One more row takes what the padding of a batch writes; no token sees it. `homes` gives the
    memory of each layer that has keys and values, and `dtypes` the element type in it. Where that
    is one of blocks, these lie in the cache rotated.
    """

    def __init__(
        self,
        hp: HParams,
        pages: int,
        homes: Mapping[int, BufferType],
        dtypes: Mapping[BufferType, DType],
        make: Callable[[BufferType, int], Buffer] | None = None,
    ) -> None:
        """Allocate zeros. Raises OutOfMemory. `make` makes buffers without data, if given."""
        super().__init__(make)
        self.pages = pages
        self.rows = pages * PAGE
        self.padding_row = self.rows
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.rotations: dict[int, Tensor] = {}
        """For each layer in blocks, the matrix by which they are rotated, see `rotation`."""
        try:
            for home, layers in by_home(homes).items():
                self._allocate(layers, (hp.key_row, hp.value_row), home, dtypes[home])
        except BaseException:
            self.close()
            raise

    def write(self, layer: int, keys: Tensor, values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows of new tokens, f32 [row, tokens], at i32 rows `at`; return the two effects."""
        return (
            tp.set_rows(self.keys[layer], keys, at, name=f"cache_k.{layer}.write"),
            tp.set_rows(self.values[layer], values, at, name=f"cache_v.{layer}.write"),
        )

    def copies(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Copy rows `source` to rows `target`, both i32, in all layers; return the effects."""
        return [
            tp.set_rows(table, tp.get_rows(table, source), target, name=f"{table.name}.copy")
            for tables in (self.keys, self.values)
            for table in tables.values()
        ]

    @property
    def copies_exactly(self) -> bool:
        """Whether `copies` leaves the same bytes: rows are decoded and encoded again.

        A block of iq4_nl may get another scale.
        """
        return all(table.dtype is not IQ4_NL for table in self.tensors)

    def sources(self) -> dict[Tensor, Callable[[], Floats]]:
        """The data of the constant tensors."""
        return {matrix: partial(hadamard, matrix.ne[0]) for matrix in self.rotations.values()}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys and values of all layers."""
        return (*self.keys.values(), *self.values.values())

    def _allocate(
        self, layers: Sequence[int], rows: tuple[int, int], home: BufferType, dtype: DType
    ) -> None:
        specs = [
            leaf(f"cache_{kind}.{i}", (self.rows + 1, size), dtype)
            for i in layers
            for kind, size in zip("kv", rows, strict=True)
        ]
        size = dtype.block
        matrix = [leaf(f"hadamard.{size}", (size, size), F32)] if dtype.is_block else []
        placed = self._place([*specs, *matrix], home)
        self.keys.update(zip(layers, placed[: len(specs) : 2], strict=True))
        self.values.update(zip(layers, placed[1 : len(specs) : 2], strict=True))
        for tensor in placed[len(specs) :]:
            self.rotations |= dict.fromkeys(layers, tensor)
            if self._make is None:
                assert tensor.place is not None
                content = as_bytes(hadamard(size))
                tensor.place.buffer.write_tensor(tensor, tensor.place.offset, content)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.keys)} layers of {self.pages} pages"
        return f"<KVCache {state}>"


class States(Tables):
    """What recurrent layers keep of up to `texts` texts: a row of f32, its slot, for each.

    A state is that after the last token read: no part of a text can be forgotten or shared, so a
    text whose slot was given up is read again from its beginning.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        texts: int,
        homes: Mapping[int, BufferType],
        make: Callable[[BufferType, int], Buffer] | None = None,
    ) -> None:
        """Allocate the slots of layers, whose memory is in `homes`. Raises OutOfMemory."""
        super().__init__(make)
        self.texts = texts
        self.past: dict[int, Tensor] = {}
        """The last inputs of the convolutions, [channels * past, texts]."""
        self.states: dict[int, Tensor] = {}
        """The states after the last tokens, [elements, texts]."""
        sizes = {"past": recurrence.past * recurrence.channels, "state": recurrence.state}
        kinds = [(kind, size) for kind, size in sizes.items() if size]
        try:
            for home, layers in by_home(homes).items():
                specs = [
                    leaf(f"cache_{kind}.{i}", (texts, size), F32)
                    for kind, size in kinds
                    for i in layers
                ]
                placed = self._place(specs, home)
                self.past.update(zip(layers, placed, strict=False))
                self.states.update(zip(layers, placed[len(layers) :], strict=False))
        except BaseException:
            self.close()
            raise

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of all layers."""
        return (*self.past.values(), *self.states.values())

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.past)} layers of {self.texts} texts"
        return f"<States {state}>"


def by_home(homes: Mapping[int, BufferType]) -> dict[BufferType, list[int]]:
    """The layers in each kind of memory."""
    return {home: [i for i in homes if homes[i] is home] for home in homes.values()}


def by_head(table: Tensor, heads: int, reach: int) -> Tensor:
    """View the first `reach` rows of `table` [heads * n, rows] as [n, reach, heads]."""
    length = table.ne[0] // heads
    strides = (table.dtype.row_size(length), table.nb[1], table.nb[0])
    return tp.view(table, (heads, reach, length), strides=strides)
