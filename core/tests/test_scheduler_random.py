"""Random graphs on random mixtures of devices, which fuse, give what one gives that does not."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.device.marks import Mark
from tensorplug.errors import DeviceError, HazardError, OutOfMemory, RunFailed
from tensorplug.graph.tensor import Tensor
from tensorplug.planning import arrange, memory
from tensorplug.planning.memory import Moment
from tensorplug.planning.stages import Stage, Work
from tensorplug.running import results as results_of
from tensorplug.running import run
from tensorplug.running.runs import Runs
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.null import NullDevice
from tensorplug_testing.timeline import Timeline

SIDE = 4
OPS = (
    *("add", "mul", "relu", "scale", "mul_mat", "soft_max", "cont", "cpy", "sub"),
    *("rms_norm", "sqr", "sigmoid"),
)
COMPOSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scaled_norm": lambda a, b: tp.rms_norm(a) * b,
    "shifted_norm": lambda a, b: b + b * tp.rms_norm(a),
    "norm_of_sum": lambda a, b: tp.rms_norm(b + a) * a,
    "gated": lambda a, b: b * tp.sigmoid(a),
    "squared": lambda a, _b: tp.sqr(tp.relu(a)),
    "chain": lambda a, b: a + b + a + b,
    "product_and_bias": lambda a, b: tp.mul_mat(a, b) + a,
    "residual": lambda a, b: (total := a + b) - tp.rms_norm(total) * b,
}
"""Several ops that devices may fuse."""


@dataclass(frozen=True)
class Recipe:
    """A program: each step names an op and the earlier values it uses; `cpy` writes state."""

    steps: tuple[tuple[str, int, int], ...]
    outputs: tuple[int, ...]
    homes: tuple[int, ...]
    refused: tuple[frozenset[str], ...]
    asynchronous: bool
    parallel: bool
    seed: int


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    count = draw(st.integers(2, 18))
    steps = tuple(
        (
            draw(st.sampled_from([*OPS, *COMPOSED])),
            draw(st.integers(0, 3 + i)),
            draw(st.integers(0, 3 + i)),
        )
        for i in range(count)
    )
    devices = draw(st.integers(1, 3))
    return Recipe(
        steps,
        tuple(draw(st.lists(st.integers(4, 3 + count), min_size=1, max_size=3, unique=True))),
        tuple(draw(st.integers(0, devices)) for _ in range(3)),
        tuple(draw(st.frozensets(st.sampled_from(OPS), max_size=5)) for _ in range(devices)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


class Program:
    """A recipe built on backends: two weights, one state, one input."""

    def __init__(self, recipe: Recipe, backends: list[Backend]) -> None:
        rng = np.random.default_rng(recipe.seed)
        homes = [backends[min(h, len(backends) - 1)] for h in recipe.homes]
        data = [rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(3)]
        self.x = tp.input("x", (SIDE, SIDE), tp.F32)
        self.state = homes[2].place("state", data[2])
        values = [
            self.x,
            homes[0].place("w0", data[0], usage=tp.WEIGHTS),
            homes[1].place("w1", data[1], usage=tp.WEIGHTS),
            self.state,
        ]
        self.effects: list[Tensor] = []
        for op, a, b in recipe.steps:
            values.append(self._step(op, values[a], values[b]))
        self.outputs = [*(values[i] for i in recipe.outputs), tp.scale(self.x, 1.0)]

    def _step(self, op: str, a: Tensor, b: Tensor) -> Tensor:
        if op == "cpy":
            write = tp.cpy(a, self.state)
            self.effects.append(write)
            # The value goes on as a copy: the state itself may be written again.
            return tp.cont(write)
        if op in COMPOSED:
            return COMPOSED[op](a, b)
        if op in ("add", "mul", "sub", "mul_mat"):
            return getattr(tp, op)(a, b)
        if op == "scale":
            return tp.scale(a, 0.5, bias=0.25)
        return getattr(tp, op)(a)


def results(
    recipe: Recipe, backends: list[Backend], *, parallel: bool, sanitize: bool | None = None
) -> list[np.ndarray]:
    program = Program(recipe, backends)
    rng = np.random.default_rng(recipe.seed + 1)
    inputs = [rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(6)]
    with tp.Scheduler(backends, parallel=parallel, sanitize=sanitize) as scheduler:
        schedule = scheduler.schedule(program.outputs, effects=program.effects)
        found: list[np.ndarray] = []
        if parallel:
            flying = [schedule.submit({program.x: x}) for x in inputs]
            found = [f[y] for f in flying for y in program.outputs]
        else:
            for i, x in enumerate(inputs):
                run = schedule.run({program.x: x})
                if i % 2:
                    continue  # no wait for this run, so the next run must wait for it
                found.extend(run[y] for y in program.outputs)
        scheduler.synchronize()
        found.append(tp.transfer.read(program.state))
    return found


def alone(recipe: Recipe) -> list[np.ndarray]:
    device = NullDevice(
        "cpu:0", device_type=tp.DeviceType.CPU, host=True, kernels=ALL_KERNELS, fusions=()
    )
    with device.open() as backend:
        return results(recipe, [backend], parallel=recipe.parallel)


@dataclass(frozen=True)
class Abilities:
    """What a device can queue; devices of two families do not understand each other's events."""

    asynchronous: bool = True
    events: bool = True
    async_transfer: bool = True
    async_copy: bool = True
    family: str = "null"


@st.composite
def abilities(draw: st.DrawFn) -> Abilities:
    flags = [draw(st.booleans()) for _ in range(4)]
    return Abilities(*flags, family=draw(st.sampled_from(["null", "other"])))


def mixture(
    recipe: Recipe, able: Sequence[Abilities] = (), *, concurrent: bool = False
) -> list[NullDevice]:
    """The devices of `recipe` with the host's last, by default all of one family."""
    timeline = Timeline(seed=recipe.seed)
    default = Abilities(*[recipe.asynchronous] * 4)
    (last, *first) = able or (default,) * 4

    def options(mine: Abilities) -> dict[str, bool]:
        found = asdict(mine)
        del found["family"]
        return {**found, "concurrent": concurrent}

    devices = [
        NullDevice(
            f"{mine.family}:{i}",
            ops=frozenset(OPS) - refused,
            timeline=timeline,
            kernels=ALL_KERNELS,
            **options(mine),
        )
        for i, (refused, mine) in enumerate(zip(recipe.refused, first, strict=False))
    ]
    host = NullDevice(
        f"{last.family}:9",
        device_type=tp.DeviceType.CPU,
        host=True,
        timeline=timeline,
        kernels=ALL_KERNELS,
        **options(last),
    )
    return [*devices, host]


def assert_like_one_device(
    recipe: Recipe, devices: Sequence[NullDevice], *, sanitize: bool | None = None
) -> None:
    backends = [d.open() for d in devices]
    try:
        found = results(recipe, backends, parallel=recipe.parallel, sanitize=sanitize)
    except tp.Unsupported:
        return  # state on a device that refuses to write it: the one refusal a mixture may meet
    finally:
        for device in devices:
            device.close(force=True)
    for mine, theirs in zip(found, alone(recipe), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(recipes())
def test_any_mixture_of_devices_gives_the_same_values(recipe: Recipe) -> None:
    assert_like_one_device(recipe, mixture(recipe))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(recipes(), st.tuples(*[abilities()] * 4))
def test_sanitizer_finds_nothing_whatever_devices_can_queue(
    recipe: Recipe, able: tuple[Abilities, ...]
) -> None:
    assert_like_one_device(recipe, mixture(recipe, able), sanitize=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(recipes())
def test_work_side_by_side_gives_the_same_values(recipe: Recipe) -> None:
    assert_like_one_device(recipe, mixture(recipe, concurrent=True), sanitize=True)


def one_stage(work: Sequence[Work], **_: object) -> tuple[Stage, ...]:
    return (tuple(work),)


def free_at_once(steps: Sequence[Moment]) -> list[int]:
    return list(range(len(steps)))


@pytest.mark.parametrize(
    ("where", "name", "mistake"),
    [(arrange, "arrange", one_stage), (memory, "stage_ends", free_at_once)],
)
def test_stages_with_hazards_are_reported(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, mistake: object
) -> None:
    x = tp.input("x", (SIDE, SIDE), tp.F32)
    values = [x]
    for i in range(8):
        values.append(tp.add(tp.scale(values[-1], 0.5), tp.relu(values[i // 2])))
    monkeypatch.setattr(where, name, mistake)
    device = NullDevice(concurrent=True, host=True)
    with (
        device,
        device.open() as stream,
        tp.Scheduler([stream], sanitize=True) as scheduler,
        pytest.raises(HazardError, match=r"in parallel .*: a barrier is missing"),
    ):
        scheduler.schedule(values[-1], fuse=False).run({x: np.ones((SIDE, SIDE), np.float32)})


def forget_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "order_after", lambda _first, _then: None)
    patch.setattr(Mark, "order", lambda _mark, _then: None)


def forget_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(results_of.InFlight, "reach", lambda _flight: None)


def forget_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Runs, "wait", lambda *_: None)


@pytest.mark.parametrize(
    ("mistake", "examples"), [(forget_waits, 150), (forget_batches, 30), (forget_runs, 30)]
)
def test_no_mistake_that_changes_a_value_escapes_the_sanitizer(
    mistake: Callable[[pytest.MonkeyPatch], None], examples: int
) -> None:
    reported = 0

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(recipes())
    def check(recipe: Recipe) -> None:
        nonlocal reported
        devices = mixture(recipe, (Abilities(),) * 4)
        backends = [d.open() for d in devices]
        try:
            with pytest.MonkeyPatch.context() as patch:
                mistake(patch)
                found = results(recipe, backends, parallel=recipe.parallel, sanitize=True)
        except tp.Unsupported:
            return
        except HazardError:
            reported += 1
            return
        finally:
            for device in devices:
                device.close(force=True)
        for mine, theirs in zip(found, alone(recipe), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    check()

    assert reported


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    recipes(),
    st.sampled_from(["alloc", "write", "read", "copy", "compute"]),
    st.integers(1, 30),
    st.integers(0, 3),
)
def test_failure_anywhere_raises_a_typed_error_and_leaks_nothing(
    recipe: Recipe, what: str, at: int, which: int
) -> None:
    devices = mixture(recipe)
    backends = [d.open() for d in devices]
    devices[which % len(devices)].fail(what, at=at)

    try:
        found = results(recipe, backends, parallel=recipe.parallel)
    except (DeviceError, OutOfMemory, tp.Unsupported):
        found = None
    finally:
        for device in devices:
            device.close(force=True)

    if found is not None:
        for mine, theirs in zip(found, alone(recipe), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert [d.live_buffers for d in devices] == [0] * len(devices)


def test_lost_device_is_the_cause_of_the_error() -> None:
    gpu = NullDevice("null:0", asynchronous=True)
    cpu = NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True)
    a, b = gpu.open(), cpu.open()
    w = a.place("w", np.eye(4, dtype=np.float32), usage=tp.WEIGHTS)
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.mul_mat(w, x)
    with tp.Scheduler([a, b]) as scheduler:
        schedule = scheduler.schedule(y)
        schedule.run({x: np.eye(4)})
        gpu.lose()

        with pytest.raises(RunFailed, match="null:0: the device is gone") as error:
            schedule.run({x: np.eye(4)})

    assert isinstance(error.value.__cause__, tp.DeviceLost)
