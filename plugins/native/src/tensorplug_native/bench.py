"""The command `tensorplug bench`: which layout of weights is faster on this processor."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

import tensorplug as tp
from tensorplug.cli.output import Json, Traceback, plain_errors, show
from tensorplug.cli.progress import showing_progress
from tensorplug.device import Backend, Tensor, leaf, place_in
from tensorplug.dtypes import DType
from tensorplug.errors import OptionError
from tensorplug.text import table
from tensorplug_native.backend import NativeBackend
from tensorplug_native.device import NativeDevice
from tensorplug_native.layouts import processor, write_measured
from tensorplug_native.panels import in_small_pages
from tensorplug_native.program import PANEL_ROWS
from tensorplug_native.rules import PACKABLE
from tensorplug_native.rules.products import INT8_LEVELS

WIDTH = 2048
"""Elements of a row of weights."""
SIZE = 48 << 20
"""Bytes of a matrix of weights: more than most caches of one processor hold."""
TURNS = 10
"""Times that each layout is read; its best time counts."""
WORTH = 1.1
"""How much faster panels must be: rows need no packing when a model is loaded."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes of weights per second that products with one row of x read, by layout."""

    dtype: DType
    rows: float
    panels: float

    @property
    def packs(self) -> bool:
        """Whether weights of this type are to be packed."""
        return self.panels > WORTH * self.rows


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, and whether it is remembered."""

    processor: str
    level: str
    threads: int
    speeds: Sequence[Speed]
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "processor": self.processor,
            "level": self.level,
            "threads": self.threads,
            "types": {
                s.dtype.name: {
                    "rows_gb_s": round(s.rows / 1e9, 1),
                    "panels_gb_s": round(s.panels / 1e9, 1),
                    "packed": s.packs,
                }
                for s in self.speeds
            },
            "remembered": self.kept,
        }

    def __str__(self) -> str:
        lines = [
            (
                s.dtype.name,
                f"{s.rows / 1e9:.1f}",
                f"{s.panels / 1e9:.1f}",
                "packed" if s.packs else "as stored",
            )
            for s in self.speeds
        ]
        words = "\n".join(table(("type", "rows, GB/s", "panels, GB/s", "loaded"), lines))
        end = "remembered for this processor" if self.kept else "not remembered: no cache"
        return f"{self.processor}, level {self.level}, threads: {self.threads}\n{words}\n{end}"


def bench(
    *,
    device: Annotated[str, typer.Option("--device", help="The device to measure.")] = "cpu",
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Measure which layout of weights is faster on this processor; loading uses the answer."""
    with plain_errors(traceback):
        tp.load_all()
        with tp.open(device) as backend:
            with showing_progress("measuring", "types") as done:
                found = measure(backend, progress=done)
            show(found, json)


def measure(
    backend: Backend, *, size: int = SIZE, progress: Callable[[int, int], None] | None = None
) -> Measured:
    """Measure all types that can be packed, and remember the answer. Raises OptionError.

    `progress` is called after each type with the number of types that are done, and of all.
    """
    if not isinstance(backend, NativeBackend) or backend.level.name not in INT8_LEVELS:
        raise OptionError(
            f"bench: {backend.name} reads weights in one layout only, so that there is nothing to "
            "measure"
        )
    kinds = sorted(PACKABLE, key=lambda kind: kind.id)
    speeds: list[Speed] = []
    for kind in kinds:
        speeds.append(_speed(backend, kind, size))
        if progress is not None:
            progress(len(speeds), len(kinds))
    level = backend.level.name
    kept = write_measured(level, frozenset(s.dtype for s in speeds if s.packs))
    return Measured(processor(), level, backend.threads, speeds, kept)


def _speed(backend: NativeBackend, dtype: DType, size: int) -> Speed:
    device = backend.device
    assert isinstance(device, NativeDevice)
    some = np.random.default_rng(0).standard_normal((PANEL_ROWS, WIDTH), np.float32)
    stored = np.empty((PANEL_ROWS, dtype.row_size(WIDTH)), np.uint8)
    device.encode_rows(dtype, some, stored)
    weights = in_small_pages(stored.nbytes * max(size // stored.nbytes, 1))
    weights.reshape(-1, stored.nbytes)[:] = stored.reshape(-1)
    weights = weights.reshape(-1, stored.shape[1])
    with ExitStack() as opened:
        # Files are mapped in small pages, too: rows in huge ones are up to 1.4 times as fast.
        rows = place_in(leaf("w", (len(weights), WIDTH), dtype), device.import_host(weights), 0)
        panels = backend.place("w", weights, dtype=dtype, buffer_type=device.panels)
        runs = [opened.enter_context(_product(backend, w)) for w in (rows, panels)]
        best = [float("inf")] * len(runs)
        for _ in range(TURNS):
            for i, run in enumerate(runs):
                start = time.perf_counter()
                run()
                best[i] = min(best[i], time.perf_counter() - start)
    return Speed(dtype, *(weights.nbytes / seconds for seconds in best))


@contextmanager
def _product(backend: NativeBackend, w: Tensor) -> Iterator[Callable[[], object]]:
    """A function that computes the product of one row of x with weights."""
    x = backend.place("x", np.ones((1, WIDTH), np.float32))
    try:
        with tp.Scheduler([backend]) as scheduler, scheduler.schedule(tp.mul_mat(w, x)) as schedule:
            schedule.run({})
            yield lambda: schedule.run({})
    finally:
        for placed in (w, x):
            if placed.place is not None:
                placed.place.buffer.close()
