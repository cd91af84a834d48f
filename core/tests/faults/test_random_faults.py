"""Random graphs on random devices, one fault at every call: the right result or a typed error.

A program runs once undisturbed, and the calls that each device meets are counted. Then it runs
again for each of these calls and each harm that can be done there.
"""

import faulthandler
import gc
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import BufferUsage
from tensorplug.errors import RunFailed
from tensorplug.graph.tensor import Tensor
from tensorplug.running import failure
from tensorplug.running.recovery import rescue, restart
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.faults import FAULTS
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline

SIDE = 4
RUNS = 3
ALL = 1_000_000
PATIENCE = 120
"""Seconds after which a program that does not end is shown and the tests are ended."""
BINARY = ("add", "mul", "sub", "mul_mat")
UNARY = ("relu", "cont", "soft_max", "sqr", "sigmoid")

Array = np.ndarray
Harm = Callable[[NullDevice, str, int], None]
Tally = Counter[tuple[str, str]]
"""How often a harm ended how."""

HARMS: dict[str, Harm] = {
    "fails": lambda device, what, at: device.fail(what, at=at),
    "is gone": lambda device, what, at: device.lose(what, at=at),
    "is full": lambda device, what, at: device.fail(what, at=at, error=tp.OutOfMemory("full")),
    "hangs": lambda device, what, at: device.hang(what, at=at, limit=60),
}
HANG_LIMIT = 0.05
FROM_BOUNDARY = "right from a boundary"


@dataclass(frozen=True)
class Recipe:
    """What a program computes, from its seed: states are restored, overwritten, or neither."""

    seed: int
    asynchronous: bool
    parallel: bool
    policy: str
    state: str

    @property
    def must_go_on(self) -> bool:
        """Whether losing any device but the host's must change nothing."""
        safe = ("none",) if self.parallel else ("none", "rows", "restored")
        return self.policy == "replan" and self.state in safe


STATES = ("none", "rows", "restored", "grows")


def recipes(first: int, count: int) -> Iterator[Recipe]:
    flags = (False, True)
    kinds = list(itertools.product(flags, flags, ("replan", "raise"), STATES))
    for seed in range(first, first + count):
        yield Recipe(seed, *kinds[seed % len(kinds)])


class Program:
    """A recipe on devices: weights with sources, a state, a few outputs."""

    def __init__(
        self, recipe: Recipe, *, alone: bool = False, hang_limit: float | None = None
    ) -> None:
        self.recipe = recipe
        self.chance = random.Random(recipe.seed)
        rng = np.random.default_rng(recipe.seed)
        self.weights = [rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(3)]
        self.inputs = [rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(RUNS)]
        self.devices = self._devices(1 if alone else self.chance.randint(2, 4))
        self.streams = [device.open() for device in self.devices]
        self.scheduler = tp.Scheduler(
            self.streams,
            parallel=recipe.parallel,
            on_failure=recipe.policy,
            hang_limit=hang_limit,
        )
        self.found: list[list[Array]] = []
        self.kept: list[Tensor] = []
        self.done = 0
        self.x = tp.input("x", (SIDE, SIDE), tp.F32)
        self.rows = tp.input("rows", (SIDE,), tp.I32)
        self._build(random.Random(recipe.seed + 1))

    def _devices(self, count: int) -> list[NullDevice]:
        timeline, late = Timeline(self.recipe.seed), self.recipe.asynchronous
        host = {"device_type": tp.DeviceType.CPU, "host": True}
        flags = [
            {
                "asynchronous": late,
                "events": late and self.chance.random() < 0.7,
                "async_transfer": late and self.chance.random() < 0.7,
                "async_copy": late and self.chance.random() < 0.7,
                "concurrent": self.chance.random() < 0.3,
            }
            for _ in range(count)
        ]
        names = [f"null:{i}" for i in range(count - 1)]
        return [
            *(
                NullDevice(n, timeline=timeline, kernels=ALL_KERNELS, **f)
                for n, f in zip(names, flags, strict=False)
            ),
            NullDevice("cpu:0", timeline=timeline, kernels=ALL_KERNELS, **host, **flags[-1]),
        ]

    def _place(self, name: str, data: Array, home: int, usage: BufferUsage) -> Tensor:
        stream = self.streams[home % len(self.streams)]
        self.kept.append(stream.place(name, data, usage=usage))
        return self.kept[-1]

    def _build(self, chance: random.Random) -> None:
        values: list[Tensor] = [self.x]
        for i, data in enumerate(self.weights):
            values.append(self._place(f"w{i}", data, chance.randrange(9), tp.WEIGHTS))
            self.scheduler.add_sources({values[-1]: lambda data=data: data})
        home = -1 if self.recipe.state == "rows" else chance.randrange(9)
        self.state = self._place("state", np.zeros((SIDE, SIDE), np.float32), home, tp.ANY)
        steps = chance.randint(4, 14)
        at, effects = chance.randrange(steps), []
        for i in range(steps):
            values.append(self._step(chance, values))
            if i == at and self.recipe.state != "none":
                write = self._write(values[-1])
                effects.append(write)
                values.append(tp.cont(write))
        self.outputs = [values[-1], *chance.sample(values[4:], min(2, len(values) - 4))]
        pins = self._pins(chance, values[4:])
        if self.recipe.state == "restored":
            self.scheduler.add_states([self.state], self._restore)
        self.schedule = self.scheduler.schedule(self.outputs, effects=effects, pins=pins)

    def _pins(self, chance: random.Random, values: Iterable[Tensor]) -> dict[Tensor, tp.Backend]:
        free = (v for v in values if not v.writes and not v.is_view)
        return {
            v: self.streams[chance.randrange(9) % len(self.streams)]
            for v in free
            if chance.random() < 0.4
        }

    def _step(self, chance: random.Random, values: list[Tensor]) -> Tensor:
        op = chance.choice((*BINARY, *UNARY))
        a, b = chance.choice(values), chance.choice(values)
        return getattr(tp, op)(a, b) if op in BINARY else getattr(tp, op)(a)

    def _write(self, value: Tensor) -> Tensor:
        if self.recipe.state == "rows":
            return tp.set_rows(self.state, value, self.rows)
        return tp.cpy(tp.scale(self.state, 0.5) + value, self.state)

    def _restore(self) -> None:
        """Compute the state again by repeating the completed runs."""
        place = self.scheduler.place_of(self.state)
        place.buffer.fill(0, place.offset, self.state.nbytes)
        for i in range(self.done):
            self.schedule.run(self._feed(i))

    def _feed(self, i: int) -> dict[Tensor, Array]:
        rows = np.random.default_rng(self.recipe.seed + i).permutation(SIDE).astype(np.int32)
        fed = {self.x: self.inputs[i], self.rows: rows}
        return {t: v for t, v in fed.items() if t in self.schedule.graph.inputs}

    def run(self) -> None:
        """Note the outputs of each run in `found`."""
        if self.recipe.parallel:
            self._run_batches()
            return
        for i in range(RUNS):
            results = self.schedule.run(self._feed(i))
            self.found.append([results[y] for y in self.outputs])
            self.done += 1

    def _run_batches(self) -> None:
        flying = [self.schedule.submit(self._feed(i)) for i in range(RUNS)]
        for flight in flying:
            self.found.append([flight[y] for y in self.outputs])
            self.done += 1

    def close(self) -> list[int]:
        """Close what the program made; returns how many buffers each device still has.

        Calls of a device that hung return first, and what they held is given back then.
        """
        for device in self.devices:
            device.release()
        self.scheduler.close(force=True)
        wait_until(lambda: not any(stream.children for stream in self.streams))
        for tensor in self.kept:
            assert tensor.place is not None
            tensor.place.buffer.close()
        for stream in self.streams:
            stream.close()
        # The thread of a call that hung gives buffers back one by one.
        wait_until(lambda: not any(device.live_buffers for device in self.devices))
        left = [device.live_buffers for device in self.devices]
        for device in self.devices:
            device.close(force=True)
        return left


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for other threads, five seconds at most."""
    clock = threading.Event()
    for _ in range(500):
        if holds():
            return
        gc.collect()
        clock.wait(0.01)


def points(recipe: Recipe) -> list[tuple[int, str, int]]:
    """Every call of every device that a run meets, after planning."""
    program = Program(recipe)
    before = [Counter(device.faults.calls) for device in program.devices]
    program.run()
    met = [d.faults.calls - b for d, b in zip(program.devices, before, strict=True)]
    program.close()
    return [
        (which, what, at)
        for which, calls in enumerate(met)
        for what in FAULTS
        for at in range(1, calls[what] + 1)
    ]


def check(recipe: Recipe, point: tuple[int, str, int], harm: str, right: list[list[Array]]) -> str:
    """Run a recipe with one fault; returns how it ended."""
    which, what, at = point
    program = Program(recipe, hang_limit=HANG_LIMIT if harm == "hangs" else None)
    last = which == len(program.devices) - 1
    HARMS[harm](program.devices[which], what, at)
    outcome = attempt(program)
    if outcome == "raised" and recipe.state == "none" and harm in ("fails", "is full"):
        # The fault was struck once: all must be as if nothing had been.
        program.found.clear()
        assert attempt(program) == "right"
    left = program.close()
    found = program.found
    del program
    assert outcome != "raised" or last or not recipe.must_go_on
    for mine, theirs in zip(found, right, strict=False):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert left == [0] * len(left)
    return outcome


def attempt(program: Program) -> str:
    """Run a program; anything but an error that says what happened comes through."""
    try:
        program.run()
    except RunFailed:
        return "raised"
    if len(program.scheduler.backends) == len(program.streams):
        return "right"
    if any(survived.boundary for survived in program.scheduler.survived):
        return FROM_BOUNDARY
    return "right without it"


def campaign(first: int, count: int, most: Mapping[str, int]) -> Tally:
    """Run `count` recipes with faults: a limited number of each harm, at random points."""
    tally: Tally = Counter()
    for recipe in recipes(first, count):
        alone = Program(recipe, alone=True)
        alone.run()
        right = alone.found
        alone.close()
        places = points(recipe)
        random.Random(recipe.seed).shuffle(places)
        for harm in most:
            for point in places[: most[harm]]:
                tally[harm, watched(recipe, point, harm, right)] += 1
    return tally


def watched(
    recipe: Recipe, point: tuple[int, str, int], harm: str, right: list[list[Array]]
) -> str:
    """The same as `check`, with an end even if it has none, and with what was run in errors."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        return check(recipe, point, harm, right)
    except Exception as error:
        raise AssertionError(f"{recipe} {harm} at {point}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def record() -> Iterator[Tally]:
    """Counts how programs ended; `./verify faults` makes `docs/verification/faults.md` of it."""
    tally: Tally = Counter()
    yield tally
    wanted = os.environ.get("TENSORPLUG_FAULTS_REPORT")
    if wanted:
        Path(wanted).write_text(page(tally))


ABOUT = """\
# Faults at every call

Written by `./verify faults`. Random programs run on one to three fake devices and a host device.
A program has weights with sources, and states that are overwritten, restored or neither; its runs
follow one another or are batches in flight. Devices work late or immediately, and which of their
transfers are queued is random.

The calls that each device receives are counted. Then the program runs again for each call and each
kind of fault. The result must be right, whether the run continued from a boundary between splits or
began again from its inputs; otherwise the run must raise RunFailed. If all data can be restored and
the host device is not the one that fails, no error is allowed. Afterwards no buffer may be left
over. A watchdog thread makes sure that every program ends.
"""


def page(tally: Tally) -> str:
    ends = (FROM_BOUNDARY, "right without it", "right", "raised")
    lines = [
        ABOUT,
        f"{sum(tally.values())} programs, each with one fault at a different call.",
        "",
        "| the device | programs | right, from a boundary | right, from the inputs | right anyway "
        "| RunFailed |",
        "|---|---|---|---|---|---|",
    ]
    for harm in HARMS:
        counts = [tally[harm, end] for end in ends]
        lines.append(f"| {harm} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join([*lines, ""])


def test_whatever_fails_where_the_result_is_right_or_the_error_says_so() -> None:
    tally = campaign(0, 32, {"fails": 1, "is gone": 2, "is full": 1})

    assert {end for _, end in tally} == {"raised", "right without it", FROM_BOUNDARY}


@pytest.mark.long
def test_whatever_fails_or_hangs_anywhere_the_result_is_right_or_the_error_says_so() -> None:
    tally = campaign(100, 64, {"fails": 4, "is gone": 8, "is full": 2, "hangs": 1})

    assert tally["hangs", "right without it"]
    assert tally["hangs", FROM_BOUNDARY]


@pytest.mark.long
@pytest.mark.parametrize(
    ("where", "name", "mistake", "first"),
    [
        (restart, "_may_be_written", lambda *_: False, 40066),
        (failure.Attempt, "_is_done", lambda *_: True, 40018),
        (rescue, "repeatable", lambda *_: True, 40035),
    ],
    ids=["takes what was written over", "takes all for done", "writes twice"],
)
def test_mistake_at_a_boundary_is_seen(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, mistake: object, first: int
) -> None:
    monkeypatch.setattr(where, name, mistake)

    with pytest.raises(AssertionError, match=f"seed={first}"):
        campaign(first, 1, {"is gone": ALL})


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1032, 2))
def test_at_every_point_the_result_is_right_or_the_error_says_so(first: int, record: Tally) -> None:
    tally = campaign(first, 2, {"fails": ALL, "is gone": ALL, "is full": ALL, "hangs": 8})

    record.update(tally)
    assert sum(tally.values()) > 100
