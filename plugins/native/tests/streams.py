"""Fixtures: one device for all tests of a module, and streams of two threads at each level."""

from collections.abc import Iterator

import pytest

from tensorplug_native.backend import NativeBackend
from tensorplug_native.device import NativeDevice
from tensorplug_native.library import library

LEVELS = tuple(library().levels)
"""What this processor runs, slowest first."""
EACH_LEVEL = [
    pytest.param(level, marks=[] if level == LEVELS[-1] else pytest.mark.long) for level in LEVELS
]
"""The same for tests of which there are thousands: all but the best can wait."""


@pytest.fixture(scope="module")
def device() -> Iterator[NativeDevice]:
    with NativeDevice("cpu:0") as device:
        yield device


@pytest.fixture(scope="module", params=EACH_LEVEL)
def backend(device: NativeDevice, request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    with device.open(threads=2, level=request.param, activations="f32") as backend:
        assert isinstance(backend, NativeBackend)
        yield backend
