"""The shared kernels on the emulated GPU of a Mac, without the backend's own."""

import pytest

from tensorplug.device import Rounding
from tensorplug_emulator import missing
from tensorplug_metal.kernels import KERNELS
from tensorplug_testing.cases import node_of
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select

pytest.importorskip("tensorplug_llm")
from tensorplug_llm.testing import ModelTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def portable(machine, monkeypatch):
    """A device with the shared kernels only."""
    from tensorplug_metal.enumeration import devices

    monkeypatch.setenv("TENSORPLUG_METAL_KERNELS", "portable")
    (device,) = devices()
    with device:
        yield device


def test_no_kernel_of_the_backend_is_left(portable):
    nodes = [node for case in select("smoke") if not portable.refuses(node := node_of(case))]
    texts = [text for node in nodes for text in portable.kernel_texts(node)]

    assert {text.origin for text in texts} == {"shared"}
    assert {portable.rounding(node) for node in nodes} == {Rounding.NONE}


@pytest.mark.parametrize("op", sorted(KERNELS.own))
def test_shared_kernels_compute_the_ops_that_have_own_kernels(portable, op):
    cases = [c for c in select("smoke") if c.op == op and not portable.refuses(node_of(c))]

    with portable.open() as stream:
        outcomes = [check(case, stream) for case in cases]

    assert outcomes
    assert [f"{o.case}: {o.detail}" for o in outcomes if o.verdict != "passed"] == []


class TestLogits(ModelTests):
    """Language models without an own kernel."""

    models = ("llama-q4_0", "gemma3")
    steps = 3

    @pytest.fixture
    def streams(self, portable):
        with portable.open() as stream:
            yield [stream]
