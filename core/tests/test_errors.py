"""Errors that leave their process, and what they say."""

import pickle
from typing import Any

import pytest

import tensorplug as tp
from tensorplug.errors import BufferTooLarge, DeviceLost, RunFailed, RunState, TensorplugError
from tensorplug.running.failure import _held
from tensorplug_testing.null import NullDevice

STATE = RunState(("far:0",), "gone", "runs", "", 0, 1, (), {"w": 8}, "make another scheduler")


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("error", [BufferTooLarge("far:0", 5, 4), DeviceLost("far:0: is gone")])
def test_pickled_error_keeps_its_class_its_text_and_its_node(error: TensorplugError) -> None:
    error.node = "relu"

    found = pickled(error)

    assert (type(found), str(found), found.node) == (type(error), str(error), "relu")


def test_pickled_failure_of_a_run_keeps_its_state() -> None:
    assert pickled(RunFailed("it failed", STATE)).state == STATE


def test_pickled_error_leaves_its_devices_behind() -> None:
    error = DeviceLost("null:0: is gone")
    error.devices = (NullDevice("null:0"),)

    assert pickled(error).devices == ()


def test_unpickled_data_type_is_the_one_of_this_process() -> None:
    assert pickled(tp.Q4_0) is tp.Q4_0


def test_text_of_a_failure_names_the_largest_memory_and_counts_the_rest() -> None:
    held = {f"w{i}": 2**i for i in range(11)}

    assert _held(held) == "w10 1.0 KiB, w9 512 B, w8 256 B, w7 128 B and 7 more, 2.0 KiB in all"
