"""The graph beside its list of nodes: a lane for each value that is still needed, as lines."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

STEP, ROW, DOT = 12, 22, 4
"""Pixels between lanes, of a row, and of the radius of a node."""
MOST = 24
"""Lanes that are drawn apart; what is beyond lies on the last."""


def lanes(reads: Sequence[Sequence[int]]) -> list[int]:
    """A lane for each node, so that none lies on the way of an earlier value to its readers."""
    last = {source: node for node, sources in enumerate(reads) for source in sources}
    free = list(range(len(reads)))
    heapify(free)
    found: list[int] = []
    for node, sources in enumerate(reads):
        for source in sources:
            if last[source] == node:
                heappush(free, found[source])
        found.append(heappop(free))
        if node not in last:
            heappush(free, found[node])
    return found


def width(found: Sequence[int]) -> int:
    """Pixels that the lanes take."""
    return (min(max(found, default=0), MOST - 1) + 2) * STEP


def drawn(
    reads: Sequence[Sequence[int]], tops: Mapping[int, int], colours: Sequence[str], height: int
) -> str:
    """The lines as SVG: `tops` are the pixels where the rows of the nodes begin."""
    found = lanes(reads)
    xs = [STEP + min(lane, MOST - 1) * STEP for lane in found]
    ys = [tops[node] + ROW // 2 for node in range(len(reads))]
    lines = [
        f'<path class="edge {colours[source]} f{source} t{node}" '
        f'd="M{xs[source]} {ys[source]}{_way(xs[source], xs[node], ys[node])}"/>'
        for node, sources in enumerate(reads)
        for source in sources
    ]
    dots = [
        f'<circle class="dot {colours[node]}" cx="{xs[node]}" cy="{ys[node]}" r="{DOT}"/>'
        for node in range(len(reads))
    ]
    size = f'width="{width(found)}" height="{height}"'
    return "\n".join([f'<svg class="lanes" {size} aria-hidden="true">', *lines, *dots, "</svg>"])


def _way(start: int, end: int, down: int) -> str:
    """Down to the row, the last bit of it across."""
    if start == end:
        return f"V{down}"
    return f"V{down - ROW + 4}C{start} {down - 6} {end} {down - ROW + 6} {end} {down}"
