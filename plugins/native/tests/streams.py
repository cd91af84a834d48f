"""Fixtures: a device for all tests of a module, its streams at each level, and one of NumPy."""

from collections.abc import Iterator

import numpy as np
import pytest

from tensorplug.device import Array, Backend
from tensorplug.dtypes import IQ1_S, IQ2_XS, IQ2_XXS
from tensorplug_cpu.device import CPUDevice
from tensorplug_native.backend import NativeBackend
from tensorplug_native.device import NativeDevice
from tensorplug_native.library import library
from tensorplug_native.rules import READABLE

LEVELS = tuple(library().levels)
"""What this processor runs, slowest first."""
EACH_LEVEL = [
    pytest.param(level, marks=[] if level == LEVELS[-1] else pytest.mark.long) for level in LEVELS
]
"""The same for tests of which there are thousands: all but the best can wait."""

CAST = READABLE - {IQ1_S, IQ2_XS, IQ2_XXS}
"""Types that f32 can be cast to; the encoders of the others want importance."""


@pytest.fixture(scope="module")
def device() -> Iterator[NativeDevice]:
    with NativeDevice("cpu:0") as device:
        yield device


@pytest.fixture(scope="module", params=EACH_LEVEL)
def backend(device: NativeDevice, request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    with device.open(threads=2, level=request.param, activations="f32") as backend:
        assert isinstance(backend, NativeBackend)
        yield backend


@pytest.fixture(scope="module")
def three(device: NativeDevice, backend: NativeBackend) -> Iterator[Backend]:
    """Three threads, so that shares are uneven, at the level of `backend`."""
    with device.open(threads=3, level=backend.level.name, activations="f32") as stream:
        yield stream


@pytest.fixture(scope="module")
def numpy() -> Iterator[Backend]:
    """What results are compared with."""
    with CPUDevice("cpu:0") as device, device.open(threads=1) as backend:
        yield backend


def numbers(*shape: int, seed: int = 0) -> Array:
    """Normal f32 numbers, others for each shape and seed."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)
