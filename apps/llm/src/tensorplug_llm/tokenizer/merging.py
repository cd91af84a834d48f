"""`merge`: byte-pair merging in Python, for the first texts of a process.

The libraries for it build their own model of a vocabulary first, which takes 0.2 s and 70 MiB for
262,144 tokens: longer than merging a few thousand characters here.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

SHORT = 16_384
"""Characters that are merged here in all, before a library's model is built."""

Rank = Callable[[str, str], float | None]


def merge(symbols: Iterable[str], rank: Rank) -> list[str]:
    """Merge neighbours that have a rank, the lowest first, of equal ranks the leftmost.

    Sennrich et al. 2016, arXiv:1508.07909.
    """
    parts = list(symbols)
    last = len(parts)
    after = list(range(1, last + 1))
    before = list(range(-1, last - 1))
    queue: list[tuple[float, int, int, int]] = []
    for right in range(1, last):
        found = rank(parts[right - 1], parts[right])
        if found is not None:
            queue.append((found, right - 1, right, len(parts[right - 1]) + len(parts[right])))
    heapify(queue)
    while queue:
        _, left, right, size = heappop(queue)
        first, second = parts[left], parts[right]
        # Parts only grow or become empty: the size tells whether both are still the same.
        if not first or not second or len(first) + len(second) != size:
            continue
        parts[left], parts[right] = first + second, ""
        next_ = after[left] = after[right]
        if next_ < last:
            before[next_] = left
        for one, other in ((before[left], left), (left, next_)):
            if one >= 0 and other < last:
                found = rank(parts[one], parts[other])
                if found is not None:
                    heappush(queue, (found, one, other, len(parts[one]) + len(parts[other])))
    return [part for part in parts if part]
