"""`benchmarks/synthetic_model.py`: models of a wanted size that load and give finite logits."""

import importlib
import sys
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import OptionError
from tensorplug.gguf import open_gguf
from tensorplug_llm import load_model
from tensorplug_llm.bench import bench
from tensorplug_llm.testing import LoneText

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not here")


@pytest.fixture
def synthetic(monkeypatch):
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("synthetic_model")
    del sys.modules["synthetic_model"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["q4_K_M", "q5_K_M", "q6_K", "iq4_xs", "q8_0", "f16", "f32"])
def test_model_of_a_wanted_size_is_measured_and_gives_finite_logits(synthetic, tmp_path, kind):
    path = synthetic.write_model(tmp_path / "model.gguf", 2e6, kind)

    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model:
        report = bench(model, prompt_tokens=20, tokens=3, repeat=1)
        with LoneText(model, 64) as text:
            logits = text.prefill(model.tokenizer.encode("What is random says nothing."))

    assert 1.2e6 < path.stat().st_size < 2.05e6
    assert report.decode_tokens_per_s > 0
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


def test_model_with_experts_gives_finite_logits(synthetic, tmp_path, monkeypatch):
    sizes = synthetic.Sizes(256, 256, 4, 2, 64, 512, experts=4, used=2)
    monkeypatch.setitem(synthetic.SHAPES, "few", (sizes, 2))
    path = synthetic.write_model(tmp_path / "model.gguf", "few", "q4_K_M")

    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model, LoneText(model, 16) as text:
        logits = text.prefill([5, 6, 7])

    assert (model.hparams.experts.count, model.hparams.experts.used) == (4, 2)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


def test_same_sizes_give_the_same_bytes(synthetic, tmp_path):
    first, second = (
        synthetic.write_model(tmp_path / name, 3e5, "q8_0").read_bytes() for name in ("a", "b")
    )

    assert first == second


def test_full_disk_is_noticed_before_anything_is_written(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1 << 20))

    with pytest.raises(OptionError, match="has 1048576 bytes free"):
        synthetic.write_model(tmp_path / "model.gguf", 8e9, "q8_0")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "kind", "layers", "width"),
    [(8e9, "q8_0", 33, 4096), (8e9, "f16", 17, 4096), (1e9, "q8_0", 17, 2048)],
)
def test_wide_layers_are_as_many_as_fit(synthetic, size, kind, layers, width):
    sizes, count = synthetic.chosen(size, synthetic.TYPES[kind])

    assert (count, sizes.embedding) == (layers, width)


@pytest.mark.parametrize(
    ("kind", "least"),
    [("q8_0", 83456), ("q4_K_M", 867072)],
)
def test_size_without_room_for_a_layer_is_refused(synthetic, kind, least):
    with pytest.raises(OptionError, match=f"give at least {least}"):
        synthetic.chosen(1e4, synthetic.TYPES[kind])


@pytest.mark.parametrize("kind", ["q4_K", "q5_K", "q6_K", "q8_0", "iq4_xs"])
def test_drawn_blocks_are_around_0_and_have_the_wanted_size(synthetic, kind):
    dtype = tp.dtype(kind)

    drawn = synthetic.Weights(7)._draw(dtype, 256)[:1000]

    values = tp.blocks.decode(drawn.tobytes(), dtype, (1000, dtype.block))
    assert abs(values.mean()) < 0.1 / 16
    assert values.std() == pytest.approx(1 / 16, rel=0.1)


def test_mix_gives_the_output_and_half_of_two_matrices_more_bits(synthetic):
    mix = synthetic.TYPES["q4_K_M"]
    sizes, layers = synthetic.SHAPES["1g"]

    entries = [*synthetic.outer(sizes, mix), *synthetic.all_layers(sizes, mix, layers)]

    more = [e.name.removeprefix("blk.") for e in entries if e.dtype is tp.Q6_K]
    numbers = [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]
    assert more == [
        "output.weight",
        *(f"{i}.{name}.weight" for i in numbers for name in ("attn_v", "ffn_down")),
    ]


@pytest.mark.parametrize(
    ("shape", "kind", "weights", "size"),
    [
        ("1g", "q4_K_M", 1.12e9, 0.68e9),
        ("1g", "f16", 1.12e9, 2.25e9),
        ("7g", "q8_0", 7.24e9, 7.7e9),
        ("moe", "q4_K_M", 2.62e9, 1.6e9),
    ],
)
def test_shape_has_as_many_weights_as_its_name_says(synthetic, shape, kind, weights, size):
    mix = synthetic.TYPES[kind]
    sizes, layers = synthetic.SHAPES[shape]

    entries = [*synthetic.outer(sizes, mix), *synthetic.all_layers(sizes, mix, layers)]

    assert sum(prod(e.ne) for e in entries) == pytest.approx(weights, rel=0.01)
    assert sum(e.nbytes for e in entries) == pytest.approx(size, rel=0.01)


def test_shape_is_written_with_its_layers(synthetic, tmp_path, monkeypatch):
    monkeypatch.setitem(synthetic.SHAPES, "1g", (synthetic.WIDTHS[-2], 3))

    path = synthetic.write_model(tmp_path / "model.gguf", "1g", "q4_K_M")

    with open_gguf(path) as file:
        assert file.metadata["llama.block_count"] == 3
        assert file.tensors["blk.2.ffn_down.weight"].dtype is tp.Q6_K


def test_text_is_several_tokens_that_give_it_back(synthetic, tmp_path):
    path = synthetic.write_model(tmp_path / "model.gguf", 3e5, "q8_0")
    text = "What is random, says nothing."

    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model:
        ids = model.tokenizer.encode(text)
        again = model.tokenizer.decode(ids)

    assert len(ids) > 10
    assert again.strip() == text


def test_pairs_of_small_letters_are_one_token(synthetic, tmp_path):
    path = synthetic.write_model(tmp_path / "model.gguf", 3e6, "q4_K_M")

    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model:
        ids = model.tokenizer.encode("the cat")
        words = [model.file.metadata["tokenizer.ggml.tokens"][id] for id in ids]

    assert words == ["<s>", "\u2581t", "he", "\u2581c", "at"]
