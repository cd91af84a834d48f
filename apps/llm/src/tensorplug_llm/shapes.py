"""`Shapes`: the few shapes of passes that readings are padded to, so that plans are reused."""

from collections.abc import Iterator, Sequence

from tensorplug_llm.cache import PAGE, pages_of, reaches
from tensorplug_llm.step import Reading, Shape

TEXTS = (1, 2, 4, 6, 8, 12, *(n << e for e in range(2, 9) for n in range(4, 8)), 2048)
"""Single tokens of a pass that reads no prompt; from 16 on four sizes for each power of two."""
BATCHES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of prompts of a pass that reads nothing else."""
ONE_TEXT = (*range(8, 64, 2), *range(64, 128, 4), *range(128, 256, 8), *range(256, 513, 16))
"""The same where there is one text: 2 tokens apart below 64, 4 below 128, 8 below 256, then 16."""
MIXED = (2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Tokens of prompts of a pass that reads single tokens too."""
FEW = 8
"""Single tokens of such a pass: 1, this many, or as many as there can be."""
ENDING = 4
"""Prompts that may end in such a pass."""
LEAST_CUT = 16
"""Padding tokens that are cheaper than another pass."""


def size_for(count: int, sizes: Sequence[int]) -> int:
    """The smallest of ascending `sizes` that holds `count`, or the largest one."""
    return next((size for size in sizes if size >= count), sizes[-1])


def batch(count: int, sizes: Sequence[int]) -> int:
    """How many of `count` tokens of prompts a pass of one of `sizes` reads.

    All of them where few tokens, or an eighth of the pass, are padding; else as many as fill it.
    """
    size = size_for(count, sizes)
    if size - count <= max(LEAST_CUT, size // 8):
        return min(count, size)
    return max((size for size in sizes if size <= count), default=count)


class Shapes:
    """Shapes for up to `most` texts at once, in a cache of `rows`.

    `drafts` are numbers of tokens that a text by itself reads behind its last one, and then the
    logits of all are wanted. Passes over prompts take every second reach: rows that no token sees
    cost them little.
    """

    def __init__(self, most: int, rows: int, drafts: Sequence[int] = ()) -> None:
        sizes = [size for size in TEXTS if size < most]
        self._most = most
        self._batches = ONE_TEXT if most == 1 else BATCHES
        self._texts = (*sizes, most)
        self._mixed_texts = (*(n for n in (1, FEW) if n < most), most)
        self._reaches = reaches(rows)
        self._prompt_reaches = self._reaches[::-2][::-1]
        self._rows = rows
        self._drafted = frozenset(size + 1 for size in drafts)
        """Tokens of a pass with drafts."""

    def batch(self, count: int) -> int:
        """How many of `count` tokens of prompts a pass reads that reads nothing else."""
        return batch(count, self._batches)

    def of(self, readings: Sequence[Reading]) -> Shape:
        """The shape of a pass over these readings."""
        joined = sum(len(r.ids) for r in readings if not r.is_single)
        singles = sum(r.is_single for r in readings)
        highest = max(max(r.pages[: pages_of(r.start + len(r.ids))]) for r in readings)
        rows = (highest + 1) * PAGE
        if not joined:
            return Shape(size_for(singles, self._texts), 0, 0, size_for(rows, self._reaches))
        reach = size_for(rows, self._prompt_reaches)
        wanted = sum(r.wanted for r in readings)
        if not singles and joined in self._drafted and wanted == joined:
            return Shape(0, joined, 0, reach)
        if not singles:
            return Shape(0, *self._batch(size_for(joined, self._batches), wanted), reach)
        texts = size_for(singles, self._mixed_texts)
        ending = ENDING if wanted > singles else 0
        return Shape(texts, size_for(joined, MIXED), texts + ending, reach)

    def all(self) -> Iterator[Shape]:
        """All shapes, larger ones first: compute memory that grows makes plans bind again."""
        for reach in reversed(self._prompt_reaches):
            for joined in self._needed(self._batches):
                yield from dict.fromkeys(
                    Shape(0, *self._batch(joined, wanted), reach) for wanted in (self._most, 1)
                )
            for texts in reversed(self._mixed_texts):
                for joined in self._needed(MIXED):
                    for ending in (ENDING, 0):
                        yield Shape(texts, joined, texts + ending, reach)
            for drafted in sorted(self._drafted, reverse=True):
                yield Shape(0, drafted, 0, reach)
        for reach in reversed(self._reaches):
            for texts in reversed(self._texts):
                yield Shape(texts, 0, 0, reach)

    def _needed(self, sizes: Sequence[int]) -> list[int]:
        """Those that the rows of the cache can fill, larger ones first."""
        largest = size_for(self._rows, sizes)
        return [size for size in reversed(sizes) if size <= largest]

    def _batch(self, joined: int, wanted: int) -> tuple[int, int]:
        """Tokens of a pass over prompts, and how many of them are chosen; 0 for all."""
        chosen = 1 if wanted <= 1 else self._most
        return joined, chosen if wanted <= chosen < joined else 0
