"""Logits of tiny random models of every architecture, against llama.cpp's F32 arithmetic."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_llm import load_model

from . import tiny_models
from .placements import PLACEMENTS

DATA = Path(__file__).with_name("llama_cpp_tiny.npz")
LIMITS = {"gemma3": 1e-3}
"""llama.cpp takes gemma3's activation from a table of halves; all else is plain F32."""


@pytest.mark.parametrize("weights", ["auto", "mapped"])
@pytest.mark.parametrize("devices", PLACEMENTS, ids="+".join)
@pytest.mark.parametrize("name", tiny_models.TINY_MODELS)
def test_logits_of_all_positions_are_those_of_llama_cpp(
    name: str, devices: tuple[str, ...], weights: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.write(name, path)
    ids = tiny_models.prompt(name)
    expected = np.load(DATA)[name]

    with ExitStack() as opened:
        backends = [opened.enter_context(tp.open(device)) for device in devices]
        model = opened.enter_context(load_model(path, backends, weights=weights))
        session = opened.enter_context(model.session(128))
        found = np.concatenate(list(session.score(ids)))

    assert np.linalg.norm(found - expected) < LIMITS.get(name, 1e-4) * np.linalg.norm(expected)


@pytest.mark.parametrize("devices", PLACEMENTS, ids="+".join)
@pytest.mark.parametrize("name", tiny_models.TINY_MODELS)
def test_token_by_token_gives_what_the_whole_prompt_gives(
    name: str, devices: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.write(name, path)
    ids = tiny_models.prompt(name)
    expected = np.load(DATA)[name]

    with ExitStack() as opened:
        backends = [opened.enter_context(tp.open(device)) for device in devices]
        model = opened.enter_context(load_model(path, backends))
        session = opened.enter_context(model.session(128))
        found = np.stack([session.decode(id) for id in ids])

    assert np.linalg.norm(found - expected) < LIMITS.get(name, 1e-4) * np.linalg.norm(expected)
