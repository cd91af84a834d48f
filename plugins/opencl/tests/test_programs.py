"""Compiled programs: how many there are, and what is said of those that do not compile."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import DeviceError
from tensorplug_opencl import programs


def test_sizes_of_tensors_need_no_new_program(device, stream):
    counts = []
    for tokens in (1, 7, 33, 128):
        x = tp.input("x", (tokens, 64), tp.F32)
        with tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0) + x) as run:
            run.run({x: np.ones((tokens, 64), np.float32)})
        counts.append(device.programs.count)

    assert counts == [2, 2, 2, 2]


def nonsense(_launch, _dialect, *, parts):
    return "__kernel void scale(nonsense"


def test_text_that_does_not_compile_names_driver_kernel_and_log(device, stream, monkeypatch):
    monkeypatch.setattr(programs, "source", nonsense)
    x = tp.input("x", (4,), tp.F32)

    with pytest.raises(DeviceError, match=r"(?s)cannot compile kernel scale.*error"):
        tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0))


def test_failed_build_leaves_the_device_usable(device, stream, monkeypatch):
    x = tp.input("x", (4,), tp.F32)
    with monkeypatch.context() as broken:
        broken.setattr(programs, "source", nonsense)
        with pytest.raises(DeviceError):
            tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0))

    y = tp.scale(x, scale=3.0)
    with tp.Scheduler([stream]).schedule(y) as run:
        assert run.run({x: np.ones(4, np.float32)})[y].tolist() == [3.0] * 4
