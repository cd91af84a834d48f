"""`benchmarks/synthetic_model.py`: models of a wanted size that load and give finite logits."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import OptionError
from tensorplug_llm import load_model
from tensorplug_llm.bench import bench

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not here")


@pytest.fixture
def synthetic(monkeypatch):
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("synthetic_model")
    del sys.modules["synthetic_model"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["q8_0", "f16", "f32"])
def test_model_of_a_wanted_size_is_measured_and_gives_finite_logits(synthetic, tmp_path, kind):
    path = synthetic.write_model(tmp_path / "model.gguf", 2e6, kind)

    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model:
        report = bench(model, prompt_tokens=20, tokens=3, repeat=1)
        with model.session(64) as session:
            logits = session.prefill(model.tokenizer.encode("What is random says nothing."))

    assert 1.5e6 < path.stat().st_size < 2.05e6
    assert report.decode_tokens_per_s > 0
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


def test_size_without_room_for_a_layer_is_refused(synthetic):
    with pytest.raises(OptionError, match="give at least 83456"):
        synthetic.chosen(1e4, tp.Q8_0)
