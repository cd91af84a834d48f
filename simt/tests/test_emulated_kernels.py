"""The shared kernels in CUDA C++, emulated, compared with the float64 reference.

All their accesses are checked, in three orders of their items. Nothing here ran on a GPU.
"""

from collections.abc import Iterator

import pytest

from tensorplug_emulator.device import EmulatedDevice
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings

from .emulated import SharedKernelTests


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


class TestKernels(SharedKernelTests):
    """The kernels that all GPU plugins share, in CUDA C++."""

    least = {**SharedKernelTests.least, "first": 60}
