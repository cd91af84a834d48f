"""What the sections of `cuda_gpu.py` share: devices, seconds, figures, and what was asked for."""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorplug.device import Backend
from tensorplug.errors import OptionError
from tensorplug_cuda import drivers

PRODUCTS = "auto f32 tensor"
"""Values of TENSORPLUG_CUDA_PRODUCTS."""
WARM_UP = 3
"""Runs that are not timed: the first loads kernels, the second captures, the third is launched."""
ROUNDS = 5
BRANCHES = 4
"""Streams for branches, where these are compared with one."""


class NotRun(Exception):
    """Why something cannot be measured here."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value, and the ceiling that it is a part `of`, if any."""

    value: float
    unit: str
    ceiling: float = 0.0
    of: str = ""
    note: str = ""

    @property
    def share(self) -> float:
        """The part of the ceiling that it reaches."""
        return self.value / self.ceiling if self.of else math.nan


@dataclass(frozen=True, slots=True)
class Asked:
    """A figure that the project asks for: at least `limit` (or at most), of its share or value."""

    what: str
    limit: float
    of: str = "share"
    at_most: bool = False

    def reached(self, figure: "Figure") -> bool:
        """Whether a figure is good enough."""
        found = figure.share if self.of == "share" else figure.value
        return found <= self.limit if self.at_most else found >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


ASKED: Mapping[str, Asked] = {
    "matvec": Asked("quantised matvec on large matrices, the slowest type, of bandwidth", 0.8),
    "rerun": Asked("host time of re-running a plan, us, the most of 10 to 10,000 nodes", 50,
                   "value", at_most=True),
    "decode q8_0": Asked("8 GB of Q8_0: decode, of bandwidth", 0.7),
    "decode f16": Asked("8 GB of F16: decode, of bandwidth", 0.7),
    "prefill q8_0": Asked("8 GB of Q8_0: prefill of 2,048 tokens, of the bf16 rate", 0.6),
    "prefill f16": Asked("8 GB of F16: prefill of 2,048 tokens, of the bf16 rate", 0.6),
    "gemma tokens": Asked("Gemma 3 270M: greedy tokens that the cpu device gives too, share", 1.0,
                          "value"),
    "gemma decode": Asked("Gemma 3 270M: decode, tokens per second", 1000, "value"),
    "gemma launches": Asked("Gemma 3 270M: launches per decode step", 400, "value", at_most=True),
    "gemma split": Asked("Gemma 3 270M over two emulated devices: the same tokens, share", 1.0,
                         "value"),
}  # fmt: skip
"""By the name under which a section gives it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: bytes, sides of matrices, tokens, nodes."""

    transfer: int = 1 << 30
    side: int = 16384
    product_side: int = 8192
    chain: int = 4
    walks: int = 16
    columns: tuple[int, ...] = (512, 2048)
    nodes: tuple[int, ...] = (10, 100, 1000, 10000)
    allocated: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
    model_bytes: float = 8e9
    prompt: int = 2048
    tokens: int = 128
    greedy: int = 64
    seconds: float = 0.1
    """Time that one round of runs should take."""


TINY = Sizes(
    transfer=1 << 16,
    side=256,
    product_side=256,
    chain=2,
    walks=2,
    columns=(20,),
    nodes=(10, 30),
    allocated=(1 << 12, 1 << 16),
    model_bytes=3e5,
    prompt=24,
    tokens=3,
    greedy=3,
    seconds=0.0,
)
"""For a rehearsal without a GPU."""


class Bench:
    """One run of the benchmark: what was asked for, and what this machine gives."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.ways: list[str] = arguments.ways.split()
        self.sizes: Sizes = TINY if arguments.tiny else Sizes()
        self.asked: dict[str, Figure] = {}
        """By name in `ASKED`."""

    @cached_property
    def emulated(self) -> bool:
        """Whether this is a rehearsal over the stand-in for CuPy, which knows no speed."""
        import cupy  # noqa: PLC0415 - might not be installed

        return hasattr(cupy, "EMULATED")

    def check(self) -> None:
        """Raise NotRun where there is no GPU."""
        reason = drivers.missing()
        # The stand-in needs no driver.
        if reason and (find_spec("cupy") is None or not self.emulated):
            raise NotRun(reason)

    def only_on_a_gpu(self, what: str) -> None:
        """Raise NotRun in a rehearsal."""
        if self.emulated:
            raise NotRun(f"the stand-in for CuPy has no {what}")

    @cached_property
    def folder(self) -> Path:
        """Where models are written."""
        return Path(self.arguments.folder)

    @cached_property
    def ceilings(self) -> dict[str, float]:
        """GB/s of `bandwidth` and TFLOP/s of `bf16`, measured once in this run."""
        from cuda_ceilings import limits  # noqa: PLC0415 - imports CuPy, and this module

        return limits(self)

    def progress(self, text: str) -> None:
        """Tell on stderr what is done."""
        print(f"  {text}", file=sys.stderr, flush=True)

    def figure(self, name: str, value: float, unit: str, *, of: str = "") -> Figure:
        """A value, and the ceiling of this run that it is a part `of`; told at once on stderr.

        Raises NotRun where there is no such ceiling.
        """
        if of and of not in self.ceilings:
            raise NotRun(f"no ceiling of {of} could be measured")
        found = Figure(value, unit, self.ceilings[of] if of else 0.0, of)
        if not self.emulated:
            share = f", {found.share:.3f} of {of}" if of else ""
            self.progress(f"{name}: {value:.4g} {unit}{share}")
        return found

    def ask(self, name: str, figure: Figure, note: str = "") -> None:
        """Let a figure be the one of that name in `ASKED`."""
        self.asked[name] = replace(figure, note=note)

    def told(self, figure: Figure, asked: Asked | None = None) -> dict[str, Any]:
        """A figure as JSON has it; without any number of a rehearsal."""
        found: dict[str, Any] = {"value": float(f"{figure.value:.4g}"), "unit": figure.unit}
        if figure.of:
            found |= {"ceiling": figure.ceiling, "of": figure.of, "share": round(figure.share, 3)}
        if asked is not None:
            found |= {"target": str(asked), "reached": asked.reached(figure)}
        if self.emulated:
            found |= dict.fromkeys(found.keys() & {"value", "ceiling", "share", "reached"})
            return found | {"emulated": True}
        return found | ({"note": figure.note} if figure.note else {})

    def answers(self) -> dict[str, Any]:
        """What was found of all that is asked for."""
        return {
            name: self.told(self.asked[name], asked)
            if name in self.asked
            else {"target": str(asked), "not run": "its section was not run, or failed"}
            for name, asked in ASKED.items()
        }


@contextmanager
def streams(count: int = 1, *, branches: int = 1, **settings: str) -> Iterator[list[Backend]]:
    """Streams on the first devices, made with variables TENSORPLUG_CUDA_* as given.

    Each runs captured plans on up to `branches` streams of CUDA's.
    Raises NotRun where this version or this machine does not know a setting.
    """
    from tensorplug_cuda.enumeration import devices  # noqa: PLC0415 - imports CuPy

    names = {f"TENSORPLUG_CUDA_{key.upper()}": value for key, value in settings.items()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        with ExitStack() as stack:
            try:
                found = [stack.enter_context(device) for device in devices()[:count]]
            except OptionError as error:
                raise NotRun(str(error)) from error
            yield [stack.enter_context(device.open(streams=branches)) for device in found]
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def seconds(
    work: Callable[[], object], wait: Callable[[], object], wanted: float, rounds: int = ROUNDS
) -> float:
    """The median seconds of `work`, of rounds that take `wanted` each and end with `wait`."""
    for _ in range(WARM_UP):
        work()
    wait()
    repeats = max(1, min(round(wanted / _once(work, wait, 1)), 10_000))
    return statistics.median(_once(work, wait, repeats) for _ in range(rounds))


def _once(work: Callable[[], object], wait: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    wait()
    return (time.perf_counter() - start) / repeats
