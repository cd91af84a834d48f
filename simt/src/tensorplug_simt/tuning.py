"""Choices by measurement: which of several ways to compute a node is fastest on a device.

A choice is made once for each class of nodes, by running every way on memory of the tuner's own,
and kept on disk (`choices`). A backend says which ways there are (`Contest`), and how launches run.

Some ways may never have run on the user's device. One that takes the process along, or raises
DeviceLost, is tried once: a mark on disk, which nothing else leaves behind, keeps its class with
the usual way. It does so too while another process tries the class.
"""

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from tensorplug.device import Array, DeviceLost, OutOfMemory, Tensor, TensorplugError
from tensorplug_simt.choices import ChoiceFile
from tensorplug_simt.merging import Placed
from tensorplug_simt.program import Program
from tensorplug_simt.trials import Trials, difference, trials

if TYPE_CHECKING:
    from tensorplug_simt.device import SimtDevice

logger = logging.getLogger("tensorplug.tuning")

BUDGET = 60.0
"""Seconds that one device may spend on timing, compilers included."""
RUNS, ENOUGH = 5, 0.1
"""A way is run so many times at most, and not again after so many seconds."""
MARGIN = 0.95
"""The usual way stays unless another takes less than this part of its time."""
LEAST, MOST = 2**16, 2**30
"""Multiplications and additions of a timed node: launching hides the time of smaller ones.
Larger ones than MOST for each unit of the device are cut."""
MOST_BYTES = 2**30
"""Memory for a timed node."""

Run = Callable[[], float]
"""Runs launches once, to their end, and tells the seconds. Raises TensorplugError."""
Preparing = Callable[[Sequence[Placed]], Run]
"""Makes launches ready to run. Raises TensorplugError where the driver cannot."""


class Contest(Protocol):
    """Several ways to compute a node."""

    @property
    def node(self) -> Tensor:
        """The node; where ways must agree, its result is f32 without gaps."""

    @property
    def kind(self) -> str:
        """The class of nodes that share a choice."""

    @property
    def names(self) -> Sequence[str]:
        """The ways; the first one is the usual one, taken where nothing was measured."""

    @property
    def operations(self) -> int:
        """Multiplications and additions."""

    def program(self, name: str) -> Program:
        """The launches of one way."""

    def cut(self, most: int) -> Self:
        """The same with a part of the node that has about `most` operations."""

    def operand(self, tensor: Tensor, random: np.random.Generator) -> Array:
        """Bytes for an operand, which repeat: `numbers` and their like of `trials`."""


class Tuner(ABC):
    """Makes the choices of one device. Thread-safe."""

    limit = math.inf
    """The largest normalised mean square error against the usual way; others are refused."""
    largest = math.inf
    """The same for the largest error of a result, by the root mean square of all."""

    def __init__(self, device: "SimtDevice", file: ChoiceFile) -> None:
        self._device: Any = device
        self._file = file
        self._left = BUDGET
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def _contest(self, node: Tensor) -> Contest | None:
        """The ways to compute `node` by the facts of the device; None below two."""

    @abstractmethod
    def _running(self) -> AbstractContextManager[Preparing]:
        """What makes launches ready, good for as long as it is entered."""

    def tune(self, node: Tensor) -> None:
        """Make the choice for `node` where there is none yet and time is left.

        Raises DeviceLost where a way took the device along; it will not be tried again.
        """
        contest = self._contest(node)
        # Most plans find all choices made: they do not wait while another thread makes some.
        if contest is None or not self._is_open(contest):
            return
        with self._lock:
            if not self._is_open(contest):
                return
            self._seen.add(contest.kind)
            # Another device or process may have been faster.
            chosen = self._file.read().get(contest.kind, "")
            if chosen not in contest.names:
                start = perf_counter()
                chosen = self._made(contest)
                self._left -= perf_counter() - start
            if chosen:
                facts = self._device.facts
                choices = MappingProxyType({**facts.choices, contest.kind: chosen})
                self._device.facts = replace(facts, choices=choices)

    def scratch(self, node: Tensor) -> int:
        """Bytes of scratch memory that suffice whichever way to compute `node` is chosen later."""
        contest = self._contest(node)
        if contest is None:
            return 0
        chosen = self._chosen(contest)
        names = contest.names if chosen is None else [chosen]
        return max((contest.program(name).scratch for name in names), default=0)

    def _chosen(self, contest: Contest) -> str | None:
        chosen: str | None = self._device.facts.choices.get(contest.kind)
        return chosen if chosen in contest.names else None

    def _is_open(self, contest: Contest) -> bool:
        """Whether there is a choice to be made that is worth its time."""
        known = contest.kind in self._seen or self._chosen(contest) is not None
        return not known and contest.operations >= LEAST and self._left > 0

    def _made(self, contest: Contest) -> str:
        """The choice, which is on disk too; empty where none could be made. Raises DeviceLost."""
        if not self._file.begin(contest.kind):
            return ""
        try:
            chosen = self._fastest(contest)
        except DeviceLost:
            raise
        except BaseException:
            self._file.end(contest.kind)
            raise
        if chosen:
            logger.info("%s: %s is fastest for %s", self._device.name, chosen, contest.kind)
            self._file.add({contest.kind: chosen})
        self._file.end(contest.kind)
        return chosen

    def _fastest(self, contest: Contest) -> str:
        """The name of the fastest way; empty where time or memory does not suffice."""
        part = self._part(contest)
        programs = {name: part.program(name) for name in contest.names}
        try:
            with (
                trials(self._device, programs, part.operand, most=MOST_BYTES) as trial,
                self._running() as prepare,
            ):
                return self._race(contest, part.node, trial).fastest(programs, prepare, self._left)
        except DeviceLost:
            raise
        except TensorplugError as error:
            logger.info("%s: nothing is timed for %s: %s", self._device.name, contest.kind, error)
            return ""

    def _part(self, contest: Contest) -> Contest:
        """What is timed: all where a part of it would run other kernels."""
        part = contest.cut(MOST * self._device.facts.units)
        pairs = ((contest.program(name), part.program(name)) for name in contest.names)
        return part if all(_kernels(whole) <= _kernels(some) for whole, some in pairs) else contest

    def _race(self, contest: Contest, node: Tensor, trial: Trials) -> "_Race":
        device = f"{self._device.name} ({self._device.description})"
        bounds = (self.limit, self.largest)
        return _Race(device, contest.kind, contest.names[0], node, trial, bounds)


@dataclass
class _Race:
    """Ways to compute `node` that run in the memory of `trial`; wrong ones leave with a warning.

    `bounds` are the largest `difference` from the usual way. A passing lack of memory is no
    verdict: OutOfMemory ends the race.
    """

    device: str
    kind: str
    usual: str
    node: Tensor
    trial: Trials
    bounds: tuple[float, float]
    runs: dict[str, Run] = field(default_factory=dict)
    wanted: Array | None = None

    def fastest(self, programs: Mapping[str, Program], prepare: Preparing, left: float) -> str:
        """The name of the fastest that is right; empty where `left` seconds do not suffice.

        Raises OutOfMemory, DeviceLost.
        """
        deadline = perf_counter() + left
        for name, program in programs.items():
            if perf_counter() > deadline:
                return ""
            self._tried(name, partial(self._enter, name, prepare, program))
        times = timed({name: partial(self._tried, name, run) for name, run in self.runs.items()})
        while name := quickest({n: t for n, t in times.items() if n in self.runs}, self.usual):
            if name == self.usual:
                break
            # What went well once may depend on what ran before it.
            self._tried(name, partial(self._check, name))
            if name in self.runs:
                break
        return name

    def _tried(self, name: str, run: Run) -> float:
        """The seconds of `run`; endless, and the way refused, where it fails.

        Raises OutOfMemory, DeviceLost.
        """
        try:
            return run()
        except OutOfMemory:
            raise
        except TensorplugError as error:
            self._refuse(name, str(error))
            if isinstance(error, DeviceLost):
                raise
            return math.inf

    def _enter(self, name: str, prepare: Preparing, program: Program) -> float:
        self.runs[name] = prepare(self.trial.placed(program))
        return self._check(name)

    def _check(self, name: str) -> float:
        """Run a way once, and refuse it where its result is not that of the usual one."""
        self.trial.clear()
        seconds = self.runs[name]()
        found = self.trial.result(self.node) if self.bounds[0] < math.inf else None
        if name == self.usual and self.wanted is None:
            self.wanted = found
        if not self.trial.intact():
            self._refuse(name, "it writes beyond its memory")
        elif found is not None:
            self._compare(name, found)
        return seconds

    def _compare(self, name: str, found: Array) -> None:
        off = (math.inf, math.inf) if self.wanted is None else difference(found, self.wanted)
        if off[0] > self.bounds[0]:
            self._refuse(name, f"its result is off by {off[0]:.3g}")
        elif off[1] > self.bounds[1]:
            self._refuse(name, f"one of its results is off by {off[1]:.3g} of their usual size")

    def _refuse(self, name: str, reason: str) -> None:
        self.runs.pop(name, None)
        logger.warning("%s: %s is not taken for %s: %s", self.device, name, self.kind, reason)


def _kernels(program: Program) -> set[tuple[object, ...]]:
    return {launch.variant for launch in program.launches}


def timed(runs: Mapping[str, Run]) -> dict[str, float]:
    """Seconds of each at best, in turns: clocks change. Hopeless ones run once."""
    taken = {name: [run()] for name, run in runs.items()}
    best = min((first for (first,) in taken.values()), default=math.inf)
    for _ in range(RUNS - 1):
        for name, run in runs.items():
            if sum(taken[name]) < ENOUGH and taken[name][0] < 3 * best:
                taken[name].append(run())
    return {name: min(seconds) for name, seconds in taken.items()}


def quickest(times: Mapping[str, float], usual: str) -> str:
    """The fastest by a margin, or the usual way; empty where nothing was timed."""
    if not times:
        return ""
    name = min(times, key=lambda name: times[name])
    return name if times[name] < MARGIN * times.get(usual, math.inf) else usual
