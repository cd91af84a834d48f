"""Fixtures: one device for all tests of a module, and streams of two threads at each level."""

from collections.abc import Iterator

import pytest

from tensorplug_native.backend import NativeBackend
from tensorplug_native.device import NativeDevice
from tensorplug_native.library import library

LEVELS = tuple(library().levels)
"""What this processor runs, slowest first."""


@pytest.fixture(scope="module")
def device() -> Iterator[NativeDevice]:
    with NativeDevice("cpu:0") as device:
        yield device


@pytest.fixture(scope="module", params=LEVELS)
def backend(device: NativeDevice, request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    with device.open(threads=2, level=request.param, activations="f32") as backend:
        assert isinstance(backend, NativeBackend)
        yield backend
