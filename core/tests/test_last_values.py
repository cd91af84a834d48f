"""Inputs that a run is not given have their last value, however many batches are in flight."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.errors import NotAllocated
from tensorplug.running import InFlight
from tensorplug_testing.null import NullDevice

W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def streams(request: pytest.FixtureRequest) -> Iterator[list[Backend]]:
    late = request.param
    devices = [
        NullDevice("gpu:0", asynchronous=late),
        NullDevice("cpu:0", device_type=tp.DeviceType.CPU, host=True, asynchronous=late),
    ]
    yield [device.open() for device in devices]
    for device in devices:
        device.close(force=True)


class Everything:
    """An observer that looks at each node."""

    def wants(self, node: tp.Tensor) -> bool:
        return True

    def see(self, node: tp.Tensor, value: np.ndarray) -> bool:
        return True


class Adding:
    """Computes `relu(w @ x) + total`; where it counts, `total` is an input that it adds `x` to."""

    def __init__(self, streams: list[Backend], home: int, *, counts: bool, on_failure: str) -> None:
        self.scheduler = tp.Scheduler(streams, parallel=True, sanitize=True, on_failure=on_failure)
        w = streams[0].place("w", W, usage=tp.WEIGHTS)
        self.scheduler.add_sources({w: lambda: W})
        self.x, self.total = tp.input("x", (4, 4), tp.F32), tp.input("total", (4, 4), tp.F32)
        added = tp.cpy(tp.add(self.total, self.x), self.total) if counts else self.total
        self.y = tp.add(tp.relu(tp.mul_mat(w, self.x)), added)
        self.counts = counts
        pins = {self.x: streams[home], self.total: streams[home]}
        effects = [added] if counts else []
        self.schedule = self.scheduler.schedule(self.y, effects=effects, pins=pins)
        self._last = {self.x: np.zeros(0), self.total: np.zeros(0)}

    def expected(self, given: dict[tp.Tensor, np.ndarray]) -> np.ndarray:
        """The result of the next run."""
        self._last |= given
        if self.counts:
            self._last[self.total] = self._last[self.total] + self._last[self.x]
        return np.maximum(self._last[self.x] @ W.T, 0) + self._last[self.total]


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("on_failure", ["raise", "replan"])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_input_that_is_not_given_has_its_last_value(
    seed: int, on_failure: str, home: int, streams: list[Backend], *, counts: bool
) -> None:
    chance = Random(seed)
    adding = Adding(streams, home, counts=counts, on_failure=on_failure)
    waiting: list[tuple[InFlight, np.ndarray]] = []
    for number in range(24):
        given = {
            tensor: np.full((4, 4), chance.randint(-9, 9), np.float32)
            for tensor in (adding.x, adding.total)
            if number == 0 or chance.random() < 0.3
        }
        expected = adding.expected(given)
        if chance.random() < 0.3:
            found = adding.schedule.run(given)[adding.y]
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        else:
            observer = Everything() if chance.random() < 0.3 else None
            flight = adding.schedule.submit(given, observer=observer)
            waiting.append((flight, expected))

    for flight, expected in waiting:
        np.testing.assert_allclose(flight[adding.y], expected, rtol=1e-5)
    adding.scheduler.close(force=True)


def test_transient_input_must_be_given_to_every_batch(streams: list[Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    with tp.Scheduler(streams, parallel=True) as scheduler:
        schedule = scheduler.schedule(tp.relu(x), transient=[x])
        for _ in range(5):
            schedule.submit({x: W})

        with pytest.raises(NotAllocated, match=r"'x'.*: is transient; give it to every run\(\)"):
            schedule.submit()


def test_values_are_gone_with_the_memory_that_is_given_back(streams: list[Backend]) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    with tp.Scheduler(streams, parallel=True) as scheduler:
        schedule = scheduler.schedule(tp.relu(x))
        schedule.run({x: W})
        scheduler.release()

        with pytest.raises(NotAllocated, match=r"'x'.*: has no value yet; give it to run\(\)"):
            schedule.run()
