"""`bench` and `perplexity`: reports that hold what they say."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorplug import Backend
from tensorplug.errors import OptionError
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.bench import bench, peak_memory
from tensorplug_llm.perplexity import perplexity
from tensorplug_llm.testing import LoneText

from .gguf_files import random_tensors

TEXT = "The quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture
def model(model_file: Callable[..., Path], cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(model_file(), [cpu]) as model:
        yield model


def test_bench_reports_medians_of_as_many_runs_as_asked_for(model: LanguageModel) -> None:
    report = bench(model, prompt_tokens=40, tokens=10, repeat=3)

    assert (report.prompt_tokens, report.tokens, report.repeat) == (40, 10, 3)
    assert len(report.prefill_series) == len(report.decode_series) == 3
    assert report.prefill_tokens_per_s == sorted(report.prefill_series)[1]
    assert report.decode_tokens_per_s == sorted(report.decode_series)[1]
    assert (report.device, report.threads, report.model) == ("cpu:0", 1, "llama.gguf")
    assert min(report.load_s, report.plan_s, report.first_token_s) > 0


def test_bench_tells_how_many_runs_are_done(model: LanguageModel) -> None:
    told = []

    bench(model, prompt_tokens=5, tokens=2, repeat=2, progress=lambda *done: told.append(done))

    assert told == [(i, 6) for i in range(1, 7)]


def test_bench_prints_what_it_found(model: LanguageModel) -> None:
    lines = str(bench(model, prompt_tokens=5, tokens=2, repeat=1)).splitlines()

    assert lines[0] == "llama.gguf on cpu:0, 1 threads"
    assert lines[1].startswith("prefill     5 tokens: ")
    assert lines[2].startswith("decode      2 tokens: ")
    assert lines[3].startswith("load 0.")


@pytest.mark.parametrize("wish", ["prompt_tokens", "tokens", "repeat"])
def test_bench_of_nothing_is_refused(wish: str, model: LanguageModel) -> None:
    with pytest.raises(OptionError) as caught:
        bench(model, **{wish: 0})

    assert str(caught.value) == (
        f"bench: {wish.replace('_', ' ')} is 0; give a number of at least 1"
    )


def test_bench_of_more_than_the_context_is_refused(model: LanguageModel) -> None:
    with pytest.raises(OptionError) as caught:
        bench(model, prompt_tokens=2000)

    assert str(caught.value) == (
        "bench: a prompt of 2000 tokens, and 128 that are generated, need a context of 2001, and "
        "this model was trained for 1024; give fewer"
    )


def test_peak_memory_is_that_of_a_python_process() -> None:
    peak = peak_memory()

    assert peak is None or 10 < peak < 100_000


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary(
    model_file: Callable[..., Path], cpu: Backend
) -> None:
    nothing = {"output.weight": 0 * random_tensors("llama", 0)["token_embd.weight"]}

    with load_model(model_file(tensors=nothing), [cpu]) as model:
        report = perplexity(model, TEXT, window=32)

    assert report.perplexity == pytest.approx(272)
    assert report.error == pytest.approx(0, abs=1e-6)


def test_perplexity_counts_predictions_of_the_second_half_of_each_window(
    model: LanguageModel,
) -> None:
    ids = model.tokenizer.encode(TEXT)
    losses = []
    with LoneText(model) as text:
        for begin in range(0, len(ids) - 31, 32):
            text.rewind()
            logits = text.score(ids[begin : begin + 32])
            wide = logits.astype(np.float64)
            log_p = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
            losses += [-log_p[n, ids[begin + n + 1]] for n in range(16, 31)]

    report = perplexity(model, TEXT, window=32)

    assert report.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)
    assert (report.tokens, report.predicted) == (len(ids), len(losses))
    assert report.windows * 15 == report.predicted


def test_perplexity_begins_windows_with_bos_where_the_model_wants_it(
    model_file: Callable[..., Path], cpu: Backend
) -> None:
    bos = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 256}
    with load_model(model_file(), [cpu]) as plain:
        without = perplexity(plain, TEXT, window=32).perplexity

    with load_model(model_file(metadata=bos), [cpu]) as model:
        assert perplexity(model, TEXT, window=32).perplexity != without


def test_text_shorter_than_a_window_is_one_window(model: LanguageModel) -> None:
    steps: list[tuple[int, int]] = []

    report = perplexity(model, TEXT, progress=lambda *step: steps.append(step))

    assert (report.windows, report.window) == (1, report.tokens)
    assert steps == [(1, 1)]
    assert str(report).startswith(f"perplexity {report.perplexity:.4f} +- ")


def test_text_too_short_to_predict_is_refused(model: LanguageModel) -> None:
    with pytest.raises(OptionError) as caught:
        perplexity(model, "hey")

    assert str(caught.value).startswith("perplexity: ")
    assert str(caught.value).endswith(" tokens of text in windows of 512; at least 5 are needed")
