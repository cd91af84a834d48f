"""The shared kernels on the emulated GPU of a Mac, without the backend's own."""

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.portable import PortableTests
from tensorplug_metal.kernels import KERNELS

pytest.importorskip("tensorplug_llm")
from tensorplug_llm.testing import ModelTests, RealModelTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    """Devices have the shared kernels only."""
    monkeypatch.setenv("TENSORPLUG_METAL_KERNELS", "portable")


class TestKernels(PortableTests):
    """Kernels of all ops."""

    kernels = KERNELS


class TestLogits(ModelTests):
    """Language models without an own kernel."""

    models = ("llama-q4_0", "gemma3")
    steps = 3


class TestTokens(RealModelTests):
    """Real language models without an own kernel."""
