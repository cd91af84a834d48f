"""`ModelTests`: tiny models of every architecture give llama.cpp's logits on any streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tensorplug import F32, Backend
from tensorplug.graph.tensor import Array
from tensorplug_llm import load_model
from tensorplug_llm.testing import tiny_models

LOGITS = Path(__file__).with_name("llama_cpp_tiny.npz")
"""What llama.cpp computes in F32 for each tiny model: `apps/llm/tests/make_llama_cpp_logits.py`."""
LIMITS = {"gemma3": 1e-3}
"""llama.cpp takes gemma3's activation from a table of halves; everything else is plain F32."""


@dataclass(frozen=True)
class TinyCase:
    """A tiny model: its file, a prompt, and llama.cpp's logits of all positions in F32."""

    name: str
    path: Path
    ids: Sequence[int]
    logits: Array

    @classmethod
    def written(cls, name: str, folder: Path) -> "TinyCase":
        """Write the model called `name`, a key of TINY_MODELS, into `folder`."""
        path = folder / "model.gguf"
        tiny_models.write(name, path)
        with np.load(LOGITS) as logits:
            return cls(name, path, tiny_models.prompt(name), logits[name])

    @property
    def limit(self) -> float:
        """The largest distance from llama.cpp that differences of F32 sums explain."""
        return LIMITS.get(self.name, 1e-4)


def distance(found: Array, expected: Array) -> float:
    """The length of the difference of two sets of logits, as a share of the expected length."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


class ModelTests:
    """Tests of language models on the streams of the fixture `streams`, which a subclass defines.

    A subclass may narrow `models`, and may override the fixture `options` of `load_model`.
    """

    models: ClassVar[Sequence[str]] = tuple(tiny_models.TINY_MODELS)
    """The tiny models to test."""
    steps: ClassVar[int] = 24
    """The tokens of the prompt that are computed one by one."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test that takes `tiny` on all models."""
        if "tiny" in metafunc.fixturenames:
            metafunc.parametrize("tiny", self.models, indirect=True)

    @pytest.fixture
    def tiny(self, request: pytest.FixtureRequest, tmp_path: Path) -> TinyCase:
        """The model of this test."""
        return TinyCase.written(request.param, tmp_path)

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Arguments of `load_model`."""
        return {}

    def test_logits_of_a_prompt_are_those_of_llama_cpp(
        self, tiny: TinyCase, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        with (
            load_model(tiny.path, streams, **options) as model,
            model.session(128, kv=F32) as session,
        ):
            found = np.concatenate(list(session.score(tiny.ids)))

        assert distance(found, tiny.logits) < tiny.limit

    def test_logits_of_tokens_one_by_one_are_those_of_llama_cpp(
        self, tiny: TinyCase, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        with (
            load_model(tiny.path, streams, **options) as model,
            model.session(128, kv=F32) as session,
        ):
            found = np.stack([session.decode(token) for token in tiny.ids[: self.steps]])

        assert distance(found, tiny.logits[: self.steps]) < tiny.limit
