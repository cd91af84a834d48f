"""The shared kernels on the emulated GPU of a Mac, without the backend's own."""

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.portable import PortableTests
from tensorplug_metal.kernels import KERNELS

pytest.importorskip("tensorplug_llm")
from tensorplug_llm.testing import ModelTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def shared_only(machine, monkeypatch):
    """A device with the shared kernels only."""
    from tensorplug_metal.enumeration import devices

    monkeypatch.setenv("TENSORPLUG_METAL_KERNELS", "portable")
    (device,) = devices()
    with device:
        yield device


class TestKernels(PortableTests):
    """Kernels of all ops."""

    kernels = KERNELS

    @pytest.fixture
    def portable(self, shared_only):
        return shared_only


class TestLogits(ModelTests):
    """Language models without an own kernel."""

    models = ("llama-q4_0", "gemma3")
    steps = 3

    @pytest.fixture
    def streams(self, shared_only):
        with shared_only.open() as stream:
            yield [stream]
