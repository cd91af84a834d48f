"""`ModelTests`: tiny models of every architecture give llama.cpp's logits on any streams.

`RealModelTests` has real ones.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import F32, Backend, DType, OptionError
from tensorplug.graph.tensor import Array
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.cache import KV_TYPES
from tensorplug_llm.models import MODELS, find_model
from tensorplug_llm.runner import Runner
from tensorplug_llm.step import Reading
from tensorplug_llm.testing import tiny_models
from tensorplug_llm.testing.lone import LoneText

LOGITS = Path(__file__).with_name("llama_cpp_tiny.npz")
"""What llama.cpp computes in F32 for each tiny model: `apps/llm/tests/make_llama_cpp_logits.py`."""
LIMITS = dict.fromkeys(("gemma2", "gemma3", "starcoder2"), 1e-3)
"""llama.cpp takes GELU from a table of halves; everything else is plain F32."""
BLOCK_LIMITS = {"q8_0": 0.03, "q5_1": 0.1, "q4_0": 0.2, "iq4_nl": 0.2}
"""How far a cache in blocks may take logits from those of an F32 cache."""


@dataclass(frozen=True)
class TinyCase:
    """A tiny model: its file, a prompt, and llama.cpp's logits of some positions in F32."""

    name: str
    path: Path
    ids: Sequence[int]
    logits: Array
    """Those of the positions RECORDED."""

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
        return LIMITS.get(tiny_models.TINY_MODELS[self.name].architecture, 1e-4)

    def distance(self, found: Array) -> float:
        """How far logits `found`, of the first positions of the prompt, are from llama.cpp's."""
        rows = [i for i in tiny_models.RECORDED if i < len(found)]
        return distance(found[rows], self.logits[: len(rows)])


def distance(found: Array, expected: Array) -> float:
    """The length of the difference of two sets of logits, as a share of the expected length."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def read_at_once(model: LanguageModel, ids: Sequence[int]) -> Array:
    """Logits of all positions of a text that is one prompt."""
    with LoneText(model, 128, kv=F32) as text:
        return text.score(ids)


def read_one_by_one(model: LanguageModel, ids: Sequence[int]) -> Array:
    """Logits of all positions of a text that is read token by token."""
    with LoneText(model, 128, kv=F32) as text:
        return np.stack([text.decode(token) for token in ids])


def read_among_others(model: LanguageModel, ids: Sequence[int]) -> Array:
    """Logits of all positions of a text whose passes read tokens of three other texts too.

    Passes of prompts only, of last tokens only, and of both.
    """
    others = [list(range(begin, begin + count)) for begin, count in ((40, 3), (90, 9), (160, 20))]
    # A pass over last tokens and prompts gives few logits: four tokens of a prompt at most.
    edges = [*(edge for edge in (0, 8, 9, 10, 14, 16, 20) if edge < len(ids)), len(ids)]
    found = []
    with Runner(
        model,
        len(others) + 1,
        most=len(others) + 1,
        context=128,
        kv=F32,
        on_failure="raise",
        restore=lambda: None,
    ) as runner:
        for step, (start, end) in enumerate(itertools.pairwise(edges)):
            last = len(others)
            mine = Reading(ids[start:end], start, [last], wanted=end - start, slot=last)
            theirs = [
                Reading([60 + step], len(other) + step - 1, [page], slot=page)
                if step
                else Reading(other, 0, [page], slot=page)
                for page, other in enumerate(others)
            ]
            found.append(runner.run([mine, *theirs])[0].copy())
    return np.concatenate(found)


READERS: Mapping[str, Callable[[LanguageModel, Sequence[int]], Array]] = {
    "at once": read_at_once,
    "one by one": read_one_by_one,
    "among others": read_among_others,
}
"""Ways to read a text."""


class _OnStreams:
    """Fixtures of tests on streams, which a subclass may override."""

    @pytest.fixture
    def streams(self, stream: Backend) -> Sequence[Backend]:
        """The streams to load on; without another definition the fixture `stream`."""
        return [stream]

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Arguments of `load_model`."""
        return {}


class ModelTests(_OnStreams):
    """Tests of language models on `streams`. A subclass may narrow `models`."""

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

    def test_logits_of_a_prompt_are_those_of_llama_cpp(
        self, tiny: TinyCase, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        with load_model(tiny.path, streams, **options) as model:
            found = read_at_once(model, tiny.ids)

        assert tiny.distance(found) < tiny.limit

    def test_logits_of_tokens_one_by_one_are_those_of_llama_cpp(
        self, tiny: TinyCase, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        with load_model(tiny.path, streams, **options) as model:
            found = read_one_by_one(model, tiny.ids[: self.steps])

        assert tiny.distance(found) < tiny.limit

    def test_logits_of_a_text_among_others_are_those_of_llama_cpp(
        self, tiny: TinyCase, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        with load_model(tiny.path, streams, **options) as model:
            found = read_among_others(model, tiny.ids[: max(self.steps, 9)])

        assert tiny.distance(found) < tiny.limit


class RealModelTests(_OnStreams):
    """Tests of real models on `streams`, of those that are installed. For slow devices."""

    tokens: ClassVar[int] = 4
    """How many tokens are generated."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(MODELS))
    def test_greedy_tokens_are_those_of_the_reference_kernels(
        self, name: str, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        try:
            path = find_model(name)
        except OptionError as error:
            pytest.skip(str(error))

        with (
            tp.open("cpu@tensorplug-cpu") as cpu,
            load_model(path, [cpu]) as expected,
            load_model(path, streams, **options) as found,
        ):
            assert self._greedy(found) == self._greedy(expected)

    def _greedy(self, model: LanguageModel) -> list[int]:
        """The most likely tokens after a prompt."""
        with LoneText(model, 64) as text:
            ids = model.tokenizer.encode("Once upon a time, there was a little")
            return text.continued(ids, self.tokens)


class CacheTests(_OnStreams):
    """Tests of caches in blocks on `streams`."""

    types: ClassVar[Sequence[str]] = tuple(BLOCK_LIMITS)
    """The types of caches to test."""
    steps: ClassVar[int] = 6
    """The tokens that are read one by one, after a prompt."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test that takes `name` with all types."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.types)

    def test_cache_in_blocks_gives_logits_near_those_of_an_f32_cache(
        self, name: str, tmp_path: Path, streams: Sequence[Backend], options: Mapping[str, Any]
    ) -> None:
        tiny = TinyCase.written("qwen3", tmp_path)
        ids = tiny.ids[: 8 + self.steps]
        with load_model(tiny.path, streams, **options) as model:
            expected, found = (_continued(model, ids, kv) for kv in (F32, KV_TYPES[name]))

        assert 0 < distance(found, expected) < BLOCK_LIMITS[name]


def _continued(model: LanguageModel, ids: Sequence[int], kv: DType) -> Array:
    """Logits of all positions, where the first eight are a prompt."""
    with LoneText(model, 128, kv=kv) as text:
        return np.stack([*text.score(ids[:8]), *(text.decode(token) for token in ids[8:])])
