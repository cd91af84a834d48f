"""`Step`: a forward pass of one shape, built, scheduled and planned once, then only run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import Graph, Results, Scheduler, Tensor
from tensorplug_llm.arch import Inputs, Pass

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens in the batch, cache rows that attention sees, and whether all logits are wanted."""

    tokens: int
    reach: int
    all_logits: bool = False


class Step:
    """A planned pass and the host arrays of its inputs. `window` > 0 gives local layers a mask."""

    def __init__(self, shape: Shape, *, window: int, padding_row: int) -> None:
        """Make the inputs; `plan` makes the rest."""
        tokens, reach = shape.tokens, shape.reach
        self.shape = shape
        self._padding_row = padding_row
        # Where the text is no longer than the window, local layers see what all others see.
        self._window = window if reach > window else 0
        self._offsets = np.arange(tokens, dtype=np.int32)
        self._columns = np.arange(reach, dtype=np.int32)
        self._ids = np.zeros(tokens, np.int32)
        self._positions = np.zeros(tokens, np.int32)
        self._rows = np.zeros(tokens, np.int32)
        self._chosen = np.zeros(1, np.int32)
        self._mask = np.zeros((tokens, reach), np.float32)
        self._local_mask = np.zeros_like(self._mask) if self._window else self._mask
        self.inputs = self._make_inputs()

    def _make_inputs(self) -> Inputs:
        tokens, reach = self.shape.tokens, self.shape.reach
        mask = tp.input("mask", (tokens, reach), tp.F32)
        chooses = tokens > 1 and not self.shape.all_logits
        return Inputs(
            ids=tp.input("ids", (tokens,), tp.I32),
            positions=tp.input("positions", (tokens,), tp.I32),
            rows=tp.input("rows", (tokens,), tp.I32),
            mask=mask,
            local_mask=tp.input("local_mask", (tokens, reach), tp.F32) if self._window else mask,
            chosen=tp.input("chosen", (1,), tp.I32) if chooses else None,
        )

    def plan(self, forward: Callable[[Pass], Tensor], building: Pass, scheduler: Scheduler) -> None:
        """Build the graph, schedule it and plan it. Raises Unsupported, OutOfMemory."""
        self.logits = forward(building)
        self.graph = Graph(self.logits, effects=building.writes)
        self._schedule = scheduler.schedule(self.graph)
        arrays: dict[Tensor | None, Array] = {
            self.inputs.ids: self._ids,
            self.inputs.positions: self._positions,
            self.inputs.rows: self._rows,
            self.inputs.mask: self._mask,
            self.inputs.local_mask: self._local_mask,
            self.inputs.chosen: self._chosen,
        }
        self._feed = {tensor: arrays[tensor] for tensor in self.graph.inputs}

    def run(self, ids: Sequence[int], start: int) -> Results:
        """Compute up to `tokens` tokens that begin at position `start`; the rest is padding."""
        count = len(ids)
        self._ids[:count] = ids
        self._ids[count:] = 0
        np.add(self._offsets, start, out=self._positions)
        self._rows[:] = self._positions
        self._rows[count:] = self._padding_row
        self._chosen[0] = max(count - 1, 0)
        self._fill_masks()
        return self._schedule.run(self._feed)

    def _fill_masks(self) -> None:
        """A token sees itself and what came before it, in local layers no farther than the window.

        Padding sees as far as it would as a token, so that none of its rows is empty.
        """
        positions = self._positions[:, None]
        hidden = self._columns > positions
        self._mask.fill(0)
        self._mask[hidden] = -np.inf
        if self._window:
            hidden |= positions - self._columns >= self._window
            self._local_mask.fill(0)
            self._local_mask[hidden] = -np.inf

    def close(self) -> None:
        """Give the plan back."""
        self._schedule.close()
