"""Every layer on several devices at once: the tokens of one device, and what is moved for them."""

from contextlib import ExitStack

import pytest

import tensorplug as tp
from tensorplug.errors import OptionError
from tensorplug.meta import MetaBackend
from tensorplug_llm import Engine, SamplingParams, load_model
from tensorplug_llm.arch import architecture_names
from tensorplug_llm.testing import LoneText, ModelTests, tiny_models
from tensorplug_testing.null import NullDevice

from .placements import OPENCL


class TestPartsOfEveryLayer(ModelTests):
    """Every device has a part of each layer."""

    models = tiny_models.FIRST
    steps = 3

    @pytest.fixture(params=[(1, 1), (3, 1), (1, 1, 1), (1, 0, 2)], ids=str)
    def options(self, request):
        return {"split": "tensor", "ratio": request.param}

    @pytest.fixture
    def streams(self, walled, options):
        return [walled(f"walled:{i}") for i in range(len(options["ratio"]))]


@pytest.mark.long
class TestPartsOfEveryArchitecture(ModelTests):
    """Uneven parts of one model of each other architecture."""

    models = tuple(name for name in architecture_names() if name in tiny_models.OTHERS)
    steps = 2

    @pytest.fixture
    def options(self):
        return {"split": "tensor", "ratio": (2, 1)}

    @pytest.fixture
    def streams(self, walled):
        return [walled("walled:0"), walled("walled:1")]


@pytest.mark.parametrize(
    ("devices", "ratio"),
    [
        (("cpu", "cpu"), None),
        (("cpu", "cpu"), (2, 1)),
        *((("cpu", name), (2, 1)) for name in OPENCL[:1]),
        *(pytest.param(("cpu", n), None, marks=pytest.mark.long) for n in OPENCL[:1]),
    ],
    ids=str,
)
def test_devices_of_any_kind_say_the_tokens_that_one_says(devices, ratio, tmp_path):
    path = tmp_path / "model.gguf"
    tiny_models.write("llama", path)
    ids = tiny_models.prompt("llama")

    with ExitStack() as opened:
        backends = [opened.enter_context(tp.open(name)) for name in devices]
        said = [
            say(path, ids, backends[:1]),
            say(path, ids, backends, split="tensor", ratio=ratio),
        ]

    assert said[0] == said[1]


@pytest.mark.parametrize("spec", ["cpu?activations=f32", "cpu?activations=int8", "cpu?threads=1"])
def test_parts_of_layers_are_computed_with_the_options_of_the_given_streams(spec, tmp_path):
    path = tmp_path / "model.gguf"
    tiny_models.write("llama", path)

    with (
        tp.open(spec) as one,
        tp.open("cpu@tensorplug-cpu") as other,
        load_model(path, [one, other], split="tensor") as model,
    ):
        stream = model.placement.output

        assert [s.options for s in stream.streams] == [one.options, other.options]
        assert [s.threads for s in stream.streams] == [one.threads, other.threads]


def say(path, ids, backends, **options):
    with load_model(path, backends, **options) as model, LoneText(model, 128, kv=tp.F32) as text:
        return text.continued(ids, 20)


def test_texts_that_share_passes_get_the_tokens_of_lone_runs(walled, tmp_path):
    path = tmp_path / "model.gguf"
    tiny_models.write("llama", path)
    prompts = [[1 + (7 * i * n) % 50 for i in range(3 + 20 * n)] for n in range(5)]
    devices = [walled("walled:0"), walled("walled:1")]
    lone = [say(path, ids, devices, split="tensor") for ids in prompts]

    with (
        load_model(path, devices, split="tensor") as model,
        Engine(model, context=128, kv=tp.F32) as engine,
    ):
        params = SamplingParams(temperature=0, max_tokens=20)
        found = [stream.result() for stream in [engine.submit(ids, params) for ids in prompts]]

    assert found == lone


def test_token_costs_two_sums_for_each_layer_and_the_logits(walled, tmp_path):
    path, sizes = tmp_path / "model.gguf", tiny_models.TINY_MODELS["llama"].sizes
    tiny_models.write("llama", path)

    with (
        load_model(path, [walled("walled:0"), walled("walled:1")], split="tensor") as model,
        LoneText(model, 128) as text,
    ):
        text.prefill([1, 5, 9])
        stream = model.placement.output
        assert isinstance(stream, MetaBackend)
        before = stream.moved
        text.decode(7)
        moved = stream.moved - before

    sums = 2 * sizes["block_count"] * 2 * sizes["embedding_length"]
    assert moved == 4 * (sums + model.hparams.vocabulary)


def test_devices_have_their_part_of_weights_and_caches(walled, tmp_path):
    path = tmp_path / "model.gguf"
    tiny_models.write("llama", path)

    with (
        load_model(path, [walled("walled:0"), walled("walled:1")], split="tensor") as model,
        LoneText(model, 128) as text,
    ):
        weights = model.weights.tensors
        found = {
            name: state_of(weights[f"blk.2.{name}.weight"])
            for name in ("attn_q", "attn_k", "attn_output", "ffn_down", "ffn_norm")
        }
        found["cache"] = state_of(text.runner.cache.values[2])

    assert found == {
        "attn_q": "axis 1: 32+32",
        "attn_k": "axis 1: 16+16",
        "attn_output": "axis 0: 32+32",
        "ffn_down": "axis 0: 48+48",
        "ffn_norm": "mirrored",
        "cache": "axis 0: 16+16",
    }


def state_of(tensor):
    """How a tensor is stored."""
    region = tensor.place.buffer.region_of(tensor, tensor.place.offset)
    return "mirrored" if region is None else str(region.state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"split": "tensor", "ratio": (1, 2, 3)},
            "ratio: 1, 2, 3 has 3 parts for cpu:0; give one for each device",
        ),
        ({"ratio": (1,)}, "ratio: goes with the split tensor; give layers instead"),
        (
            {"split": "tensor", "layers": [1]},
            "layers: every device has a part of each layer; give a ratio instead",
        ),
        ({"split": "rows"}, "split: 'rows' is unknown; choose layer or tensor"),
    ],
)
def test_splits_that_cannot_be_are_refused(options, message, cpu, model_file):
    with pytest.raises(OptionError) as caught:
        load_model(model_file(), [cpu], **options)

    assert str(caught.value) == message


def test_tensor_split_over_remote_devices_is_refused_with_what_it_would_cost(cpu, model_file):
    far = NullDevice("far:0")
    far.remote = True
    with (
        far.open() as stream,
        pytest.raises(OptionError, match="is a message to far:0: 244 messages for a token"),
    ):
        load_model(model_file(), [stream, cpu], split="tensor")
