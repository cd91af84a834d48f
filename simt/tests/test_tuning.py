"""What timed choices are made of: operands, results that are compared, turns."""

from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import OutOfMemory
from tensorplug.dtypes import DTYPES, INTEGERS
from tensorplug_cpu.reference import decode
from tensorplug_emulator.device import EmulatedDevice
from tensorplug_simt.trials import (
    PERIOD,
    SIZES,
    difference,
    first_rows,
    indices,
    mask,
    numbers,
    some,
    trials,
)
from tensorplug_simt.tuning import RUNS, quickest, timed


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t not in INTEGERS], ids=str)
def test_operands_are_numbers_that_products_of_16_bits_can_hold(dtype):
    count = 500

    stored = numbers(dtype, np.random.default_rng(0))[: count * dtype.size]
    values = decode(dtype, stored.view(dtype.storage))

    assert np.isfinite(values).all()
    assert 1e-3 < np.abs(values).max() < 2**15
    assert len(np.unique(values)) > 2


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t not in INTEGERS], ids=str)
def test_operands_are_as_large_as_is_known(dtype):
    stored = numbers(dtype, np.random.default_rng(0))[: 5000 * dtype.size]
    values = decode(dtype, stored.view(dtype.storage)).astype(float)

    assert 0.3 < np.sqrt(np.mean(values**2)) / SIZES.get(dtype, 1) < 3.5


def test_integers_are_indices():
    found = indices(tp.I32, 7).view(np.int32)

    assert found.size == PERIOD
    assert (np.unique(found) == np.arange(7)).all()


def test_masks_hide_about_half():
    found = mask(tp.F16, np.random.default_rng(0)).view(np.float16)

    assert 0.4 < np.mean(found == -np.inf) < 0.6
    assert np.isfinite(found[found != -np.inf]).all()


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ([3, 4], (0, 0)),
        ([3, 5], (1 / 25, 1 / 12.5**0.5)),
        ([3, np.nan], (np.inf, np.inf)),
        ([3, np.inf], (np.inf, np.inf)),
    ],
)
def test_difference_is_that_of_squares_and_endless_where_there_is_no_number(found, error):
    assert difference(np.float32(found), np.float32([3, 4])) == pytest.approx(error)


def test_wrong_tile_of_a_large_result_shows_in_the_largest_error():
    wanted = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    found = wanted.copy()
    found[1000:1016, 500:516] = 0

    error, largest = difference(found.reshape(-1), wanted.reshape(-1))

    assert error < 1e-4
    assert largest > 1


@pytest.mark.parametrize("count", [10, 300, 4096, 100_001])
@pytest.mark.parametrize("most", [1, 700, 5000])
def test_parts_of_matrices_end_within_a_tile_and_keep_their_alignment(count, most):
    found = some(count, most)

    assert found == count or (found % 64 and found % 8 == count % 8)
    assert found <= max(most, 287)


def test_first_rows_of_matrices_lie_without_what_follows_them():
    w = tp.input("w", (3, 50, 8), tp.F32)

    part = first_rows(w, 20)

    assert (part.ne, part.nb) == ((8, 20, 3, 1), (4, 32, 640, 1920))


def test_matrices_that_repeat_or_lie_across_keep_their_strides():
    w = tp.input("w", (3, 50, 8), tp.F32)
    across, again = replace(w, nb=(200, 4, 1600, 4800)), replace(w, nb=(4, 32, 0, 0))

    assert first_rows(again, 20).nb == again.nb
    assert first_rows(across, 20).nb == across.nb


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"own": 1.0, "other": 0.9}, "other"),
        ({"own": 1.0, "other": 0.96}, "own"),
        ({"other": 3.0}, "other"),
        ({}, ""),
    ],
)
def test_usual_way_stays_unless_another_is_faster_by_a_margin(times, chosen):
    assert quickest(times, "own") == chosen


def test_ways_are_timed_in_turns_and_hopeless_ones_once():
    order = []
    seconds = {"a": 1e-3, "b": 2e-3, "slow": 1e-2}

    def run(name):
        order.append(name)
        return seconds[name] + 1e-4 * (len(order) < 4)

    found = timed({name: lambda name=name: run(name) for name in seconds})

    assert order == ["a", "b", "slow"] + ["a", "b"] * (RUNS - 1)
    assert found == seconds | {"slow": pytest.approx(1.01e-2)}


@pytest.fixture
def device():
    with EmulatedDevice() as device:
        yield device


def test_memory_that_is_not_there_is_not_taken(device):
    y = tp.scale(tp.input("x", (64,), tp.F32), 2.0)

    with (
        pytest.raises(OutOfMemory, match="a trial takes 512 bytes and may take 511"),
        trials(device, {"own": device.lower(y)}, lambda *_: np.zeros(8, np.uint8), most=511),
    ):
        pass
