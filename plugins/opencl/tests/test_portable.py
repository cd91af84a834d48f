"""The shared kernels on OpenCL's drivers, without the backend's own."""

import pytest

from tensorplug.device import Refusal
from tensorplug_emulator.portable import PortableTests
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.kernels import KERNELS
from tensorplug_simt.lowering import SHARED, lower
from tensorplug_testing.cases import node_of
from tensorplug_testing.tiers import select


class TestKernels(PortableTests):
    """Kernels of all ops."""

    kernels = KERNELS

    @pytest.fixture
    def portable(self, driver, monkeypatch):
        monkeypatch.setenv("TENSORPLUG_OPENCL_KERNELS", "portable")
        with OpenCLDevice("opencl:0", driver) as device:
            yield device


def test_shared_kernels_take_every_node_that_own_kernels_take(device):
    nodes = [node_of(case) for case in select("ci")]

    taken = [n for n in nodes if not isinstance(lower(n, device.facts, KERNELS.ops), Refusal)]
    refused = [n for n in taken if isinstance(lower(n, device.facts, SHARED), Refusal)]

    assert len(taken) > 2000
    assert refused == []
