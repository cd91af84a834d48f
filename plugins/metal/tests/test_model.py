"""Tiny language models from file to tokens, beside llama.cpp's logits and the cpu's; emulated."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_emulator import missing

load_model = pytest.importorskip("tensorplug_llm").load_model

APP = Path(__file__).parents[3] / "apps" / "llm" / "tests"
"""Where the models and what llama.cpp made of them are."""
NAMES = ("llama", "llama-q4_0", "qwen3", "gemma3")
LIMITS = {"gemma3": 1e-3}
"""llama.cpp takes gemma3's activation from a table of halves; all else is plain F32."""
TOKENS = 6

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(not APP.exists(), reason="the tests of tensorplug-llm are not here"),
]


@pytest.fixture(scope="module")
def tiny():
    """The module that writes the models."""
    spec = importlib.util.spec_from_file_location("metal_tiny_models", APP / "tiny_models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(params=NAMES)
def case(request, tiny, tmp_path):
    """A model's name, file, prompt, and llama.cpp's logits of all positions in F32."""
    path = tmp_path / "model.gguf"
    tiny.write(request.param, path)
    expected = np.load(APP / "llama_cpp_tiny.npz")[request.param]
    return request.param, path, tiny.prompt(request.param), expected


def away(found, expected):
    """How far logits are from llama.cpp's, as a share of their length."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def greedy(path, stream, ids, count):
    """The tokens that follow a prompt where the likeliest is taken each time."""
    with load_model(path, [stream]) as model, model.session(128, kv=tp.F32) as session:
        *_, logits = np.concatenate(list(session.score(ids)))
        found = [int(np.argmax(logits))]
        while len(found) < count:
            found.append(int(np.argmax(session.decode(found[-1]))))
    return found


def test_logits_of_a_prompt_are_those_of_llama_cpp(case, stream):
    name, path, ids, expected = case
    with load_model(path, [stream]) as model, model.session(128, kv=tp.F32) as session:
        found = np.concatenate(list(session.score(ids)))

    assert away(found, expected) < LIMITS.get(name, 1e-4)


def test_tokens_one_by_one_are_recorded_and_those_of_the_cpu(case, stream, machine):
    _, path, ids, _ = case
    before = machine.executions

    found = greedy(path, stream, ids, TOKENS)

    with tp.open("cpu@tensorplug-cpu") as cpu:
        assert found == greedy(path, cpu, ids, TOKENS)
    assert machine.executions - before >= TOKENS - 3


def test_weights_of_a_mapped_file_are_used_where_they_lie(device, stream, tiny, tmp_path):
    path = tmp_path / "model.gguf"
    tiny.write("llama", path)

    with load_model(path, [stream]):
        taken = device.total - device.memory().free

    assert taken < path.stat().st_size / 4
