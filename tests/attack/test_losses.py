"""A device is lost at every call that reaches it: what is computed must be the same."""

import logging
import runpy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend, Device
from tensorplug.device import BufferType
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.memory import CPUBufferType
from tensorplug_llm import Engine, SamplingParams, load_model, shapes
from tensorplug_opencl import drivers
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_testing.faults import FAULTS
from tensorplug_testing.null import NullDevice, null_devices

from .losing import Losing

Attempts = Callable[[int, int], int]

FILES = Path(__file__).parents[2] / "apps/llm/tests/gguf_files.py"
write_model = runpy.run_path(str(FILES))["write_model"]
CONTEXT = 96
GREEDY = SamplingParams(temperature=0, max_tokens=5)
NEVER = None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each loss is a warning of several lines."""
    logging.getLogger("tensorplug.running").setLevel(logging.ERROR)
    yield
    logging.getLogger("tensorplug.running").setLevel(logging.NOTSET)


# --- language models ---------------------------------------------------------------------------


class WalledType(CPUBufferType):
    """Memory that the host must copy from."""

    is_host = False


class WalledDevice(CPUDevice):
    """The kernels of the cpu in memory of its own."""

    type = tp.DeviceType.GPU
    extra_buffer_types = ()

    def __init__(self) -> None:
        super().__init__("walled:0")
        self._own = WalledType(self)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        return buffer_type is self._own


def opencl() -> Device:
    found = list(drivers.devices())
    if not found:
        pytest.skip(drivers.missing() or "no OpenCL driver has a device")
    return OpenCLDevice("opencl:0", found[0])


DEVICES: dict[str, Callable[[], Device]] = {"walled": WalledDevice, "opencl": opencl}


def generated(engine: Engine, prompt: list[int]) -> list[float]:
    return [*engine.submit(prompt, GREEDY).result()]


def scored(engine: Engine, prompt: list[int]) -> list[float]:
    """The log probabilities of a prompt, and what continues it, whose pages are known then."""
    return engine.score(prompt) + generated(engine, prompt)


def same(found: list[float], expected: list[float]) -> bool:
    """Whether tokens are equal, and scores within the rounding of sums."""
    return len(found) == len(expected) and np.allclose(found, expected, rtol=0, atol=1e-3)


USES = {"generate": generated, "score": scored}


class Reading:
    """A language model on a device that can be lost and on the cpu, and what reads a prompt."""

    def __init__(self, path: Path, device: str, use: str) -> None:
        self._path, self._open, self._use = path, DEVICES[device], USES[use]

    def run(self, length: int, at: int | None) -> tuple[list[float], list[str]]:
        """What comes of a prompt where call `at` of the engine loses the device; all its calls."""
        prompt = [40 + i % 60 for i in range(length)]
        with ExitStack() as stack:
            devices = [self._open(), CPUDevice()]
            for device in devices:
                stack.callback(device.close, force=True)
            streams: list[Backend] = [devices[0].open(), devices[1].open(threads=1)]
            model = stack.enter_context(load_model(self._path, streams, layers=[1, 1]))
            engine = stack.enter_context(
                Engine(
                    model, context=CONTEXT, texts=2, kv=tp.F32, on_failure="replan", threaded=False
                )
            )
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            losing = Losing(patch, streams[0], at)
            found = self._use(engine, prompt)
            return found, losing.moments


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention graphs of 32 positions and more, and batches of few tokens: many step shapes."""
    monkeypatch.setattr("tensorplug_llm.cache.SMALLEST_REACH", 32)
    monkeypatch.setattr(shapes, "BATCHES", (4, 16, 64))
    monkeypatch.setattr(shapes, "LEAST_CUT", 2)
    monkeypatch.setenv("TENSORPLUG_OPENCL_ACTIVATIONS", "f32")


@pytest.mark.parametrize(
    ("device", "use", "few", "every"),
    [
        *(("walled", "generate", 40, 900), ("walled", "score", 20, 500)),
        pytest.param("opencl", "generate", 4, 120, marks=pytest.mark.long),
        pytest.param("opencl", "score", 2, 80, marks=pytest.mark.long),
    ],
)
def test_text_is_the_same_whenever_a_device_is_lost(
    device: str, use: str, few: int, every: int, small_steps: None, tmp_path: Path,
    rng: Random, attempts: Attempts,
) -> None:  # fmt: skip
    reading = Reading(write_model(tmp_path / "m.gguf"), device, use)
    wrong = []
    left = attempts(few, every)
    while left:
        length = rng.randint(1, 80)
        expected, moments = reading.run(length, NEVER)
        for at in rng.sample(range(len(moments)), min(left, 20, len(moments))):
            left -= 1
            found, _ = reading.run(length, at)
            if not same(found, expected):
                wrong.append(f"{length} tokens, lost at call {at}, {moments[at]}")

    assert not wrong


def test_inputs_of_an_interrupted_step_are_not_those_of_the_text_read_again(
    small_steps: None, tmp_path: Path
) -> None:
    reading = Reading(write_model(tmp_path / "m.gguf"), "walled", "score")
    expected, moments = reading.run(8, NEVER)
    waits = [at for at, name in enumerate(moments) if name == "_synchronize"]

    found = {at: reading.run(8, at)[0] for at in waits}

    assert {at: ids for at, ids in found.items() if not same(ids, expected)} == {}


# --- programs that write the arrays they gave --------------------------------------------------


W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
RUNS = 4


class Everything:
    """An observer that looks at each node."""

    def wants(self, node: tp.Tensor) -> bool:
        return True

    def see(self, node: tp.Tensor, value: np.ndarray) -> bool:
        return True


class Program:
    """Keeps a row of each run in a table on the second device, and has one array for its inputs.

    One more input is given to the first run only, for all of them.

    Where the table is lost it repeats its runs, which writes the arrays again.
    """

    def __init__(self, mode: str, *, asynchronous: bool, side_by_side: bool) -> None:
        self.devices = [*null_devices(2, family="gpu", seed=1, asynchronous=asynchronous)]
        self.cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
        self.streams = [d.open() for d in (*self.devices, self.cpu)]
        self.mode = mode
        self.scheduler = tp.Scheduler(
            self.streams, on_failure="replan", parallel="in flight" in mode,
            ahead=2 if side_by_side else None,
        )  # fmt: skip
        self._x = np.zeros((1, 4), np.float32)
        self._row = np.zeros(1, np.int32)
        self._seen: list[int] = []
        self._plan()

    def _plan(self) -> None:
        x, row = tp.input("x", (1, 4), tp.F32), tp.input("row", (1,), tp.I32)
        w0, w1 = (self.streams[i].place(f"w{i}", W, usage=tp.WEIGHTS) for i in range(2))
        self.scheduler.add_sources({w0: lambda: W, w1: lambda: W})
        self._once = tp.input("once", (1, 4), tp.F32)
        first = tp.relu(tp.add(tp.mul_mat(w0, x), self._once))
        second = tp.mul_mat(w1, first)
        effects = []
        if "in flight" in self.mode:
            self.y = tp.relu(tp.add(second, tp.mul_mat(w0, first)))
        else:
            table = self.streams[1].place("table", np.zeros((RUNS, 4), np.float32))
            self.scheduler.add_states([table], self._again)
            effects = [tp.set_rows(table, second, row)]
            self.y = tp.add(tp.mul_mat(table, first), tp.mul_mat(w0, second))
        self.inputs = {x: self._x, row: self._row} if effects else {x: self._x}
        self._schedule = self.scheduler.schedule(self.y, effects=effects)

    def _again(self) -> None:
        for number in self._seen:
            self._run(number)

    def _given(self, number: int) -> dict[tp.Tensor, Any]:
        self._x[...] = np.arange(4) - number
        self._row[...] = number
        return self.inputs if number else {**self.inputs, self._once: W[:1]}

    def _observer(self, number: int) -> Everything | None:
        """None for every third run: observed ones and others take turns in the same memory."""
        return Everything() if "observed" in self.mode and number % 3 != 1 else None

    def _run(self, number: int) -> Any:
        return self._schedule.run(self._given(number), observer=self._observer(number))

    def results(self) -> list[np.ndarray]:
        if "in flight" in self.mode:
            flying = [
                self._schedule.submit(self._given(number), observer=self._observer(number))
                for number in range(RUNS + 2)
            ]
            return [flight[self.y] for flight in flying]
        found = []
        for number in range(RUNS):
            found.append(self._run(number)[self.y])
            self._seen.append(number)
        return found

    def close(self) -> None:
        self.scheduler.close(force=True)
        for device in (*self.devices, self.cpu):
            device.close(force=True)


def losses(make: Callable[[], Program]) -> Iterator[tuple[int, str, int]]:
    """Device, kind of call and number of all calls that the devices of a program hear."""
    program = make()
    before = [device.faults.calls.copy() for device in program.devices]
    program.results()
    for (i, device), what in product(enumerate(program.devices), FAULTS):
        yield from ((i, what, at + 1) for at in range(device.faults.calls[what] - before[i][what]))
    program.close()


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["run", "observed", "in flight", "observed in flight"])
def test_arrays_that_the_program_writes_again_change_no_result(
    mode: str, asynchronous: bool, side_by_side: bool, rng: Random, attempts: Attempts
) -> None:
    def make() -> Program:
        return Program(mode, asynchronous=asynchronous, side_by_side=side_by_side)

    program = make()
    expected = program.results()
    program.close()
    everywhere = list(losses(make))
    wrong = []

    for device, what, at in rng.sample(everywhere, min(attempts(30, 400), len(everywhere))):
        program = make()
        program.devices[device].lose(what, at=at)
        found = program.results()
        program.close()
        if not all(map(np.array_equal, found, expected)):
            wrong.append(f"gpu:{device} lost at {what} {at}")

    assert not wrong
