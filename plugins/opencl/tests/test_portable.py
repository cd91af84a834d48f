"""The shared kernels on OpenCL's drivers, without the backend's own."""

from collections.abc import Iterator

import pytest

from tensorplug.device import Refusal
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.kernels import KERNELS
from tensorplug_simt.lowering import SHARED, lower
from tensorplug_testing.cases import node_of
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select


@pytest.fixture
def portable(driver, monkeypatch) -> Iterator[OpenCLDevice]:
    """A device with the shared kernels only."""
    monkeypatch.setenv("TENSORPLUG_OPENCL_KERNELS", "portable")
    with OpenCLDevice("opencl:0", driver) as device:
        yield device


def test_no_kernel_of_the_backend_is_left(portable):
    texts = [
        text
        for case in select("smoke")
        if not portable.refuses(node := node_of(case))
        for text in portable.kernel_texts(node)
    ]

    assert {text.origin for text in texts} == {"shared"}


def test_shared_kernels_take_every_node_that_own_kernels_take(device):
    nodes = [node_of(case) for case in select("ci")]

    taken = [n for n in nodes if not isinstance(lower(n, device.facts, KERNELS.ops), Refusal)]
    refused = [n for n in taken if isinstance(lower(n, device.facts, SHARED), Refusal)]

    assert len(taken) > 2000
    assert refused == []


@pytest.mark.long
@pytest.mark.parametrize("op", sorted(KERNELS.own))
def test_shared_kernels_compute_the_ops_that_have_own_kernels(portable, op):
    cases = [c for c in select("smoke") if c.op == op and not portable.refuses(node_of(c))]

    with portable.open() as stream:
        outcomes = [check(case, stream) for case in cases]

    assert outcomes
    assert [f"{o.case}: {o.detail}" for o in outcomes if o.verdict != "passed"] == []
