"""Tiny language models, their logits compared with llama.cpp's and the cpu's; emulated."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_emulator import missing

load_model = pytest.importorskip("tensorplug_llm").load_model
from tensorplug_llm.testing import CacheTests, LoneText, ModelTests, TinyCase  # noqa: E402

NAMES = ("llama", "llama-q4_0", "qwen3", "gemma3")
TOKENS = 6

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestLogits(ModelTests):
    """On one stream."""

    models = NAMES
    steps = TOKENS


class TestCaches(CacheTests):
    """Keys and values in blocks."""

    types = ("q8_0", "iq4_nl")
    steps = 2


def greedy(path, stream, ids, count):
    """The tokens that follow a prompt where the likeliest is taken each time."""
    with load_model(path, [stream]) as model, LoneText(model, 128, kv=tp.F32) as text:
        *_, logits = text.score(ids)
        found = [int(np.argmax(logits))]
        while len(found) < count:
            found.append(int(np.argmax(text.decode(found[-1]))))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_tokens_one_by_one_are_recorded_and_those_of_the_cpu(name, stream, machine, tmp_path):
    case = TinyCase.written(name, tmp_path)
    before = machine.executions

    found = greedy(case.path, stream, case.ids, TOKENS)

    with tp.open("cpu@tensorplug-cpu") as cpu:
        assert found == greedy(case.path, cpu, case.ids, TOKENS)
    assert machine.executions - before >= TOKENS - 3


def test_weights_of_a_mapped_file_are_used_where_they_lie(device, stream, tmp_path):
    case = TinyCase.written("llama", tmp_path)

    with load_model(case.path, [stream]):
        taken = device.total - device.memory().free

    assert taken < case.path.stat().st_size / 4
