"""The grids of the IQ formats as tables to search: what is on a grid, and what lies next to it.

A grid holds some of all the tuples of `levels` levels that `width` values could take; a block
stores the numbers of its tuples in the grid. A tuple that is not in the grid must be replaced by
one that is. Its candidates are listed once: the points within the smallest `rings` distances.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tensorplug.blocks.rows import gguf_quants
from tensorplug.device import Array

RINGS = {"IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ3_XXS": 2, "IQ3_S": 3, "IQ1_S": 3}
"""How many different distances the candidates of a tuple span, by the `gguf` name of its grid."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of a grid, and what each tuple of levels can become.

    `points`: uint8 levels [width, points]; `places`, of the same shape, says where their costs lie
    among those of all levels of a tuple. `numbers`: int32 [tuples], the number of the point, or
    -1. Candidates of tuple t are `candidates[first[t] : first[t] + count[t]]`, nearest first.
    """

    levels: int
    points: Array
    places: Array
    numbers: Array
    first: Array
    count: Array
    candidates: Array

    @property
    def width(self) -> int:
        """Values of one tuple."""
        return len(self.points)

    def tuples(self, levels: Array) -> Array:
        """The number of each tuple of levels, f32 [groups, width, n]: int32 [groups, n]."""
        code = levels[:, -1].copy()
        for i in range(self.width - 2, -1, -1):
            code *= self.levels
            code += levels[:, i]
        return code.astype(np.int32)

    def nearest(self, tuples: Array, costs: Array) -> Array:
        """The cheapest candidate of each tuple, int32 [n]; of equally cheap ones the first.

        `costs`, f32 [n, width, levels], says what each level costs at each place of each tuple.
        """
        count = self.count[tuples]
        ends = np.cumsum(count)
        starts = ends - count
        owner = np.repeat(np.arange(len(tuples)), count)
        candidate = self.candidates[np.arange(len(owner)) + (self.first[tuples] - starts)[owner]]
        prices, at = costs.reshape(-1), owner * (self.width * self.levels)
        price = np.take(prices, at + self.places[0].take(candidate))
        for place in self.places[1:]:
            price += np.take(prices, at + place.take(candidate))
        cheapest = np.flatnonzero(price <= np.minimum.reduceat(price, starts)[owner])[::-1]
        best = self.candidates[self.first[tuples]]  # stays where a price is not a number
        best[owner[cheapest]] = candidate[cheapest]
        return best


@cache
def grid(name: str) -> Grid:
    """The grid that `gguf` calls `name`."""
    owner = getattr(gguf_quants(), name)
    owner.init_grid()
    values = np.asarray(owner.grid, np.float32).reshape(owner.grid_shape)
    points = np.searchsorted(np.array(owner.grid_map, np.float32), values)
    return build(points, len(owner.grid_map), RINGS[name])


def build(points: Array, levels: int, rings: int) -> Grid:
    """Tables of a grid of `points`, integer levels [points, width]."""
    width = points.shape[1]
    powers = levels ** np.arange(width)
    numbers = np.full(levels**width, -1, np.int32)
    numbers[points @ powers] = np.arange(len(points))
    every = np.arange(levels**width)[:, None] // powers % levels
    parts = [_candidates(part, points, rings) for part in np.array_split(every, 8)]
    count = np.concatenate([count for count, _ in parts])
    return Grid(
        levels,
        np.ascontiguousarray(points.T, dtype=np.uint8),
        np.ascontiguousarray((points + levels * np.arange(width)).T, dtype=np.intp),
        numbers,
        np.cumsum(count) - count,
        count,
        np.concatenate([candidates for _, candidates in parts]),
    )


def _candidates(tuples: Array, points: Array, rings: int) -> tuple[Array, Array]:
    """How many points lie within the `rings` smallest distances of each tuple, and which."""
    a, b = tuples.astype(np.float32), points.astype(np.float32)  # small whole numbers: exact
    distance = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * (a @ b.T)
    reach = distance.min(axis=1)
    for _ in range(rings - 1):
        beyond = np.where(distance > reach[:, None], distance, np.float32(np.inf))
        farther = beyond.min(axis=1)
        reach = np.where(np.isinf(farther), reach, farther)
    owner, point = np.nonzero(distance <= reach[:, None])
    order = np.lexsort((distance[owner, point], owner))  # stable: equal distances by number
    return np.bincount(owner, minlength=len(tuples)), point[order]
