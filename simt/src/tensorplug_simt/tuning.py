"""Choices by measurement: which of several ways to compute a node is fastest on a device.

A choice is made once for each class of nodes, by running every way on memory of the tuner's own,
and kept on disk (`choices`). A backend says which ways there are (`Contest`), and how launches run.

Some ways may never have run on the user's device. One that takes the device, or the process, along
is tried once: before they are tried, the file says that the usual way was chosen.
"""

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from tensorplug.errors import DeviceLost, TensorplugError
from tensorplug.tensor import Array, Tensor
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

    def __init__(self, device: "SimtDevice", file: ChoiceFile) -> None:
        self._device: Any = device
        self._file = file
        self._left = BUDGET
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def _contest(self, node: Tensor) -> Contest | None:
        """The ways to compute `node` by the facts of the device; None where it has one alone."""

    @abstractmethod
    def _running(self) -> AbstractContextManager[Preparing]:
        """What makes launches ready, good for as long as it is entered."""

    def tune(self, node: Tensor) -> None:
        """Make the choice for `node` where there is none yet and time is left.

        Raises DeviceLost where a way took the device along; it will not be tried again.
        """
        with self._lock:
            contest = self._contest(node)
            if contest is None or not self._is_open(contest):
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
        worth = len(contest.names) > 1 and contest.operations >= LEAST
        return worth and not known and self._left > 0

    def _made(self, contest: Contest) -> str:
        """The choice, which is on disk too; empty where none could be made. Raises DeviceLost."""
        self._file.add({contest.kind: contest.names[0]})
        chosen = self._fastest(contest)
        if chosen:
            logger.info("%s: %s is fastest for %s", self._device.name, chosen, contest.kind)
            self._file.add({contest.kind: chosen})
        else:
            self._file.forget(contest.kind)
        return chosen

    def _fastest(self, contest: Contest) -> str:
        """The name of the fastest way; empty where time or memory does not suffice."""
        contest = contest.cut(MOST * self._device.facts.units)
        programs = {name: contest.program(name) for name in contest.names}
        memory = trials(self._device, programs, contest.operand, most=MOST_BYTES)
        try:
            with memory as trial, self._running() as prepare:
                times = timed(self._sound(contest, programs, trial, prepare))
        except DeviceLost:
            raise
        except TensorplugError as error:
            logger.info("%s: nothing is timed for %s: %s", self._device.name, contest.kind, error)
            return ""
        return quickest(times, contest.names[0])

    def _sound(
        self,
        contest: Contest,
        programs: Mapping[str, Program],
        trial: Trials,
        prepare: Preparing,
    ) -> dict[str, Run]:
        """The ways that run and agree with the usual one; none where time does not suffice."""
        deadline = perf_counter() + self._left
        sound: dict[str, Run] = {}
        wanted: Array | None = None
        for name, program in programs.items():
            if perf_counter() > deadline:
                return {}
            try:
                run = prepare(trial.placed(program))
                trial.clear()
                run()
                found = trial.result(contest.node) if self.limit < math.inf else None
                beyond = not trial.intact()
            except TensorplugError as error:
                self._refuse(contest, name, str(error))
                if isinstance(error, DeviceLost):
                    raise
                continue
            wanted = found if name == contest.names[0] else wanted
            reason = "it writes beyond its memory" if beyond else self._objection(found, wanted)
            if reason:
                self._refuse(contest, name, reason)
            else:
                sound[name] = run
        return sound

    def _objection(self, found: Array | None, wanted: Array | None) -> str:
        """What is wrong with a result; empty where nothing is, or nothing was read."""
        off = math.inf
        if found is not None and wanted is not None:
            off = difference(found, wanted)
        return f"its result is off by {off:.3g}" if off > self.limit else ""

    def _refuse(self, contest: Contest, name: str, reason: str) -> None:
        device = self._device
        logger.warning(
            "%s (%s): %s is not taken for %s: %s",
            *(device.name, device.description, name, contest.kind, reason),
        )


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
