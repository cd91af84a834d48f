"""`Step`: a forward pass of one shape, built, scheduled and planned once, then only run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import Graph, Scheduler, Tensor
from tensorplug.ops.ids import NO_ROW
from tensorplug.running import Explanation
from tensorplug_llm.arch import Inputs, Part, Pass, Slots
from tensorplug_llm.cache import PAGE, pages_of
from tensorplug_llm.hparams import HParams

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]

_ROWS = np.arange(PAGE, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of a pass: `singles`, each of another sequence, then `joined` ones of any sequences.

    Singles are all readings that are `is_single`, and only these.

    Attention sees the first `reach` cache rows. The logits of `chosen` tokens are computed, or
    those of all tokens where it is 0. The `kept` greatest of each token are read, or all where it
    is 0.
    """

    singles: int
    joined: int
    chosen: int
    reach: int
    kept: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of both kinds."""
        return self.singles + self.joined


class Greatest(NamedTuple):
    """The greatest logits of tokens and their ids, in any order: two arrays [wanted, kept]."""

    ids: npt.NDArray[np.int32]
    logits: Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of one sequence to be read: `ids`, the first of them at position `start`.

    `pages` hold the rows of the sequence, those of `ids` among them. Logits are wanted of the last
    `wanted` tokens. `slot` is where recurrent layers keep their states of the sequence.
    """

    ids: Sequence[int]
    start: int
    pages: Sequence[int]
    wanted: int = 1
    slot: int = 0

    @property
    def is_single(self) -> bool:
        """Whether it is one token whose logits are wanted, as in texts that are being continued."""
        return len(self.ids) == 1 and self.wanted == 1


class Masks:
    """Host memory for the masks of all passes, of which one is filled at a time."""

    def __init__(self) -> None:
        self._arrays = [np.zeros(0, np.float32)] * 2

    def take(self, index: int, shape: tuple[int, ...]) -> Floats:
        """An array of mask 0 or 1; passes made before it was enlarged keep theirs."""
        size = math.prod(shape)
        if self._arrays[index].size < size:
            self._arrays[index] = np.zeros(size, np.float32)
        return self._arrays[index][:size].reshape(shape)


class _SlotArrays:
    """The values of `Slots` for `texts`; `tokens` are those of one text, 0 for single ones."""

    def __init__(self, texts: int, past: int, tokens: int) -> None:
        self.reads = np.full(texts, NO_ROW, np.int32)
        self.writes = np.full(texts, NO_ROW, np.int32)
        self.last = np.zeros((texts, past), np.int32)
        self.real = np.zeros((tokens, 1), np.float32)
        self._order = np.arange(past, dtype=np.int32)

    def clear(self) -> None:
        """Let all be padding."""
        self.reads.fill(NO_ROW)
        self.writes.fill(NO_ROW)

    def fill(self, text: int, reading: Reading) -> None:
        """Let text number `text` be this reading."""
        self.reads[text] = reading.slot if reading.start else NO_ROW
        self.writes[text] = reading.slot
        self.last[text] = self._order + len(reading.ids)
        self.real[:] = 0
        self.real[: len(reading.ids)] = 1


class Step:
    """A planned pass and the host arrays of its inputs."""

    def __init__(self, shape: Shape, masks: Masks, hparams: HParams, *, padding_row: int) -> None:
        """Make the inputs; `plan` makes the rest."""
        window = hparams.window if hparams.local_layers else 0
        tokens, pages = shape.tokens, pages_of(shape.reach)
        self.shape = shape
        self._padding_row = padding_row
        # Where no text is longer than the window, local layers see what all others see.
        self._window = window if shape.reach > window else 0
        self._ids = np.zeros(tokens, np.int32)
        self._positions = np.zeros(tokens, np.int32)
        self._rows = np.full(tokens, padding_row, np.int32)
        self._chosen = np.zeros(shape.chosen, np.int32)
        mask = (tokens, pages, PAGE)
        self._mask = masks.take(0, mask)
        self._local_mask = masks.take(1, mask) if self._window else self._mask
        self._arrays: dict[Tensor, Array] = {}
        self._past = hparams.recurrence.past if hparams.recurrence else 0
        self._slots: list[_SlotArrays] = []
        self.inputs = Inputs(
            ids=self._input("ids", self._ids),
            positions=self._input("positions", self._positions),
            rows=self._input("rows", self._rows),
            parts=tuple(self._parts()),
            chosen=self._input("chosen", self._chosen) if shape.chosen else None,
        )

    def _parts(self) -> list[Part]:
        kinds = ((0, self.shape.singles, True), (self.shape.singles, self.shape.joined, False))
        return [self._part(*kind) for kind in kinds if kind[1]]

    def _part(self, first: int, count: int, apart: bool) -> Part:  # noqa: FBT001 - a row of a table
        shape = (count, 1, 1, self.shape.reach) if apart else (count, self.shape.reach)
        name = "" if apart else "joined_"
        mask = self._input(f"{name}mask", self._mask[first : first + count].reshape(shape))
        local = mask
        if self._window:
            array = self._local_mask[first : first + count].reshape(shape)
            local = self._input(f"{name}local_mask", array)
        return Part(first, count, apart, mask, local, self._slots_of(name, count, apart))

    def _slots_of(self, name: str, count: int, apart: bool) -> Slots | None:  # noqa: FBT001
        if not self._past:
            return None
        arrays = _SlotArrays(count if apart else 1, self._past, 0 if apart else count)
        self._slots.append(arrays)
        return Slots(
            reads=self._input(f"{name}slots_read", arrays.reads),
            writes=self._input(f"{name}slots_written", arrays.writes),
            last=self._input(f"{name}slots_last", arrays.last),
            real=self._input(f"{name}real", arrays.real) if arrays.real.size else None,
        )

    def _input(self, name: str, array: Array) -> Tensor:
        tensor = tp.input(name, array.shape, array.dtype)
        self._arrays[tensor] = array
        return tensor

    def plan(
        self,
        forward: Callable[[Pass], Tensor],
        building: Pass,
        scheduler: Scheduler,
        vocabulary: int,
    ) -> None:
        """Build the graph, schedule it and plan it. Raises Unsupported, OutOfMemory.

        Logits beyond the `vocabulary` of the tokenizer, which embedding tables may have, are not
        among the greatest ones.
        """
        logits, kept = forward(building), self.shape.kept
        outputs = _greatest(logits, kept, vocabulary) if kept else (logits,)
        self.graph = Graph(outputs, effects=building.writes)
        # All plans share the memory of inputs: masks of 98 of them would take 170 MB.
        self._schedule = scheduler.schedule(self.graph, transient=self.graph.inputs)
        self._feed = {tensor: self._arrays[tensor] for tensor in self.graph.inputs}

    def explain(self) -> Explanation:
        """What runs where."""
        return self._schedule.explain()

    def run(self, readings: Sequence[Reading]) -> list[Floats]:
        """Compute readings that fit the shape; return the logits [wanted, vocabulary] of each.

        Tokens beyond them are padding.
        """
        rows = self._fill(readings)
        logits = self._schedule.run(self._feed)[self.graph.outputs[0]]
        return [logits[part] for part in rows]

    def submit(
        self, readings: Sequence[Reading]
    ) -> Callable[[], Sequence[Floats] | Sequence[Greatest]]:
        """Queue what `run` does, and return a function that waits for the logits.

        The inputs are copied before it returns, so the next pass may fill the arrays.
        """
        rows = self._fill(readings)
        flight = self._schedule.submit(self._feed)

        def logits() -> Sequence[Floats] | Sequence[Greatest]:
            first, *more = [flight[output] for output in self.graph.outputs]
            if not self.shape.kept:
                return [first[part] for part in rows]
            (greatest,) = more
            return [Greatest(first[part], greatest[part, :, 0]) for part in rows]

        return logits

    def _fill(self, readings: Sequence[Reading]) -> list[slice]:
        """Write the inputs of a pass; return the rows of its logits that each reading wants."""
        self._ids.fill(0)
        self._positions.fill(0)
        self._rows.fill(self._padding_row)
        firsts = self._firsts(readings)
        if self._past:
            self._fill_slots(readings, firsts)
        rows: list[slice] = []
        chosen = 0
        for reading, first in zip(readings, firsts, strict=True):
            end = first + len(reading.ids)
            positions = np.arange(reading.start, reading.start + len(reading.ids), dtype=np.int32)
            pages = np.asarray(reading.pages, np.int32)
            self._ids[first:end] = reading.ids
            self._positions[first:end] = positions
            self._rows[first:end] = pages[positions // PAGE] * PAGE + positions % PAGE
            if self.shape.chosen:
                rows.append(slice(chosen, chosen + reading.wanted))
                self._chosen[rows[-1]] = range(end - reading.wanted, end)
                chosen += reading.wanted
            else:
                rows.append(slice(end - reading.wanted, end))
        self._fill_masks(readings, firsts)
        return rows

    def _firsts(self, readings: Sequence[Reading]) -> list[int]:
        """The first token of each reading: single tokens come before those of longer readings."""
        single, joined, firsts = 0, self.shape.singles, []
        for reading in readings:
            count = len(reading.ids)
            if reading.is_single:
                firsts.append(single)
                single += 1
            else:
                firsts.append(joined)
                joined += count
        return firsts

    def _fill_slots(self, readings: Sequence[Reading], firsts: Sequence[int]) -> None:
        """Let each sequence go on from its state; one that begins has none, padding leaves none."""
        for arrays in self._slots:
            arrays.clear()
        for reading, first in zip(readings, firsts, strict=True):
            arrays = self._slots[0 if reading.is_single else -1]
            arrays.fill(first if reading.is_single else 0, reading)

    def _fill_masks(self, readings: Sequence[Reading], firsts: Sequence[int]) -> None:
        """Let a token see itself and what its sequence has before it, in local layers its window.

        Padding sees nothing.
        """
        masks = [(self._mask, self.shape.reach)]
        if self._window:
            masks.append((self._local_mask, self._window))
        for mask, window in masks:
            mask.fill(-np.inf)
            for reading, first in zip(readings, firsts, strict=True):
                if len(reading.ids) == 1:
                    _show_to_one(mask[first], reading, window)
                else:
                    _show_to_all(mask[first : first + len(reading.ids)], reading, window)

    def close(self) -> None:
        """Give the plan back."""
        self._schedule.close()


def _show_to_one(row: Floats, reading: Reading, window: int) -> None:
    """Let the token of a reading see itself and those before it, `window` positions in all.

    `row` is its row of the mask, [pages, PAGE].
    """
    end = reading.start + 1
    first = max(end - window, 0)
    pages = reading.pages[first // PAGE : pages_of(end)]
    row[pages] = 0
    row[pages[0], : first % PAGE] = -np.inf
    row[pages[-1], reading.start % PAGE + 1 :] = -np.inf


def _show_to_all(rows: Floats, reading: Reading, window: int) -> None:
    """The same for several tokens, whose rows of the mask are [tokens, pages, PAGE]."""
    start, end = reading.start, reading.start + len(reading.ids)
    pages = np.asarray(reading.pages, np.intp)
    # Every token sees all of the pages from `whole` to `edge`; of others some tokens see a part.
    first, last = max(start - window + 1, 0) // PAGE, pages_of(end)
    whole, edge = pages_of(max(end - window, 0)), (start + 1) // PAGE
    if whole < edge:
        rows[:, pages[whole:edge]] = 0
    else:
        whole = edge = first
    parts = np.r_[first:whole, edge:last].astype(np.int32)
    positions = np.arange(start, end, dtype=np.int32)[:, None, None]
    behind = positions - (PAGE * parts[:, None] + _ROWS)
    seen = (behind >= 0) & (behind < window)
    rows[:, pages[parts]] = np.where(seen, np.float32(0), np.float32(-np.inf))


def _greatest(logits: Tensor, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The ids of the greatest logits of each row, and these logits."""
    if vocabulary < logits.shape[-1]:
        logits = tp.cont(logits[:, :vocabulary])
    ids = tp.top_k(logits, count)
    return ids, tp.get_rows(tp.reshape(logits, (*logits.shape, 1)), ids)
