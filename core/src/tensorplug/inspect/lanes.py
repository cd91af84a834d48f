"""The drawing of a graph next to its list of nodes: one vertical lane for each live value."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

STEP, ROW, DOT = 12, 22, 4
"""Distance of lanes, height of a row, radius of a node; in pixels."""
MOST = 24
"""The most lanes that are drawn separately; further lanes coincide with the last one."""


def lanes(reads: Sequence[Sequence[int]]) -> list[int]:
    """Assign a lane to each node: two values that are alive at the same time never share one."""
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
    """The width of the drawing in pixels."""
    return (min(max(found, default=0), MOST - 1) + 2) * STEP


def drawn(
    reads: Sequence[Sequence[int]], tops: Mapping[int, int], colours: Sequence[str], height: int
) -> str:
    """Return the drawing as SVG; `tops` are the y coordinates of the nodes' rows."""
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
    """SVG path: vertical to the row of the reader, then a curve to its lane."""
    if start == end:
        return f"V{down}"
    return f"V{down - ROW + 4}C{start} {down - 6} {end} {down - ROW + 6} {end} {down}"
