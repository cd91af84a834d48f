"""The kit on several cpu devices that act as one; mirrored bytes must be equal on all of them."""

from collections.abc import Iterator

import numpy as np
import pytest

from tensorplug import meta
from tensorplug.meta.buffer import MetaBuffer
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.kit import DeviceTests
from tensorplug_testing.null import null_devices
from tensorplug_testing.suites.graphs import GraphTests
from tensorplug_testing.suites.memory import MemoryTests
from tensorplug_testing.suites.ops import OpTests
from tensorplug_testing.suites.random import RandomTests
from tensorplug_testing.suites.transfer import TransferTests


def read_everywhere(buffer: MetaBuffer, offset: int, out: memoryview) -> None:
    """Read as `MetaBuffer` does; the bytes that each device has must agree."""
    plain_read(buffer, offset, out)
    for start, end, region in buffer._parts(offset, out.nbytes):
        if region is None and buffer._copies is not None:
            first, *others = (copy.read(start, end - start) for copy in buffer.copies)
            for other in others:
                np.testing.assert_array_equal(other, first)


plain_read = MetaBuffer._read


def several(count: int, policy: str, ratio: tuple[int, ...]) -> Iterator[meta.MetaDevice]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetaBuffer, "_read", read_everywhere)
        simple = [CPUDevice(f"cpu:{i}") for i in range(count)]
        with meta.device(simple, policy, ratio=ratio) as device:
            yield device
        for each in simple:
            each.close(force=True)


class TestTwo(OpTests, RandomTests, GraphTests, MemoryTests, TransferTests):
    """What computes and what moves data, on tensors of which one device has twice as much."""

    test_plan_runs_again_and_where_it_is_bound_anew = None

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        yield from several(2, "slowest", (2, 1))

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, device):
        with device.open() as backend:
            yield backend

    @pytest.fixture(scope="class")
    @classmethod
    def kit_seed(cls):
        return 0


@pytest.mark.long
class TestThree(DeviceTests):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        yield from several(3, "slowest", (1, 2, 1))


@pytest.mark.long
class TestTwoWithRowsCut(DeviceTests):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        yield from several(2, "columns", (1, 1))


@pytest.mark.long
class TestTwoMirrored(DeviceTests):
    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        yield from several(2, "mirrored", (1, 1))


@pytest.mark.long
class TestThreeThatWorkLate(DeviceTests):
    """Streams with events, asynchronous transfers and copies, that finish in any order."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        simple = null_devices(3, asynchronous=True, kernels=ALL_KERNELS, logs=False, memory=1 << 28)
        with meta.device(simple, "slowest") as device:
            yield device
