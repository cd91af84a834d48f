"""Passes: every way to read a text gives the same logits, and decoding only runs plans."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import Backend, Graph, Scheduler
from tensorplug.device import BufferType
from tensorplug.errors import Closed, OptionError, OutOfMemory
from tensorplug_cpu.plan import CPUPlan
from tensorplug_llm import Engine, LanguageModel, load_model
from tensorplug_llm.arch import architecture, architecture_names
from tensorplug_llm.cache import reaches
from tensorplug_llm.shapes import BATCHES, ONE_TEXT, Shapes, batch, size_for
from tensorplug_llm.step import Reading
from tensorplug_llm.testing import LoneText

from .gguf_files import END, VOCABULARY, random_tensors

GENERATING = [name for name in architecture_names() if architecture(name).generates]

Write = Callable[..., Path]
Open = Callable[..., Backend]

CLOSE = {"rtol": 0, "atol": 2e-4}
"""Logits of these models are about one; sums in another order differ by 1e-5."""
LONG = [(7 * i + 3) % 256 for i in range(700)]


@pytest.fixture
def llama(model_file: Write, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(model_file(), [cpu]) as model:
        yield model


def all_logits(text: LoneText, ids: Sequence[int]) -> np.ndarray:
    text.rewind()
    return text.score(ids)


# --- equal ways to read --------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATING)
def test_one_by_one_and_all_at_once_give_equal_logits(
    name: str, model_file: Write, cpu: Backend
) -> None:
    ids = LONG[:60]

    with load_model(model_file(name), [cpu]) as model, LoneText(model) as text:
        expected = all_logits(text, ids)
        text.rewind()
        found = np.stack([text.decode(id) for id in ids])

    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 70, 257, 513, 700])
def test_prompts_of_any_length_end_in_the_logits_of_their_last_token(
    count: int, name: str, model_file: Write, cpu: Backend
) -> None:
    with load_model(model_file(name), [cpu]) as model, LoneText(model) as text:
        expected = all_logits(text, LONG[:count])[-1]
        text.rewind()

        np.testing.assert_allclose(text.prefill(LONG[:count]), expected, **CLOSE)
        assert text.position == count


def test_crossing_to_a_longer_reach_changes_nothing(llama: LanguageModel) -> None:
    with LoneText(llama) as text:
        expected = all_logits(text, LONG[:262])
        text.rewind()
        text.prefill(LONG[:252])
        found = np.stack([text.decode(id) for id in LONG[252:262]])

    np.testing.assert_allclose(found, expected[252:], **CLOSE)


def test_padding_may_pass_the_end_of_the_context(llama: LanguageModel) -> None:
    with LoneText(llama, 20) as small, LoneText(llama) as large:
        expected = all_logits(large, LONG[:20])

        small.prefill(LONG[:17])
        found = np.stack([small.decode(id) for id in LONG[17:20]])

    np.testing.assert_allclose(found, expected[17:], **CLOSE)


def test_rewound_text_leaves_no_trace(llama: LanguageModel) -> None:
    with LoneText(llama) as text:
        expected = text.prefill(LONG[:40])
        text.prefill(LONG[100:400])
        text.rewind(30)

        np.testing.assert_allclose(text.prefill(LONG[30:40]), expected, **CLOSE)


def test_texts_of_one_model_do_not_disturb_each_other(llama: LanguageModel) -> None:
    with LoneText(llama) as one, LoneText(llama) as other:
        one.prefill(LONG[:30])
        other.prefill(LONG[200:280])
        found = one.decode(LONG[30])

        one.rewind()
        np.testing.assert_allclose(found, one.prefill(LONG[:31]), **CLOSE)


def test_local_layers_forget_what_left_their_window(model_file: Write, cpu: Backend) -> None:
    path = model_file("gemma3", metadata={"gemma3.attention.sliding_window_pattern": [True, True]})
    kept = LONG[100:139]  # two layers that see 20 tokens each: 39 tokens decide

    with load_model(path, [cpu]) as model, LoneText(model) as text:
        first = text.prefill([*LONG[:61], *kept])
        text.rewind()
        second = text.prefill([*LONG[300:361], *kept])
        text.rewind()
        other = text.prefill([*LONG[300:361], 9, *kept[1:]])

    np.testing.assert_allclose(first, second, **CLOSE)
    assert np.abs(first - other).max() > 1e-3


def test_untied_output_matrix_is_used(model_file: Write, cpu: Backend) -> None:
    doubled = 2 * random_tensors("llama", 0)["token_embd.weight"]
    with load_model(model_file(), [cpu]) as model, LoneText(model) as text:
        expected = text.prefill(LONG[:5])

    path = model_file(tensors={"output.weight": doubled})
    with load_model(path, [cpu]) as model, LoneText(model) as text:
        np.testing.assert_allclose(text.prefill(LONG[:5]), 2 * expected, **CLOSE)


def test_bias_beside_a_tied_table_counts(model_file: Write, cpu: Backend) -> None:
    bias = np.linspace(-9, 9, VOCABULARY, dtype=np.float32)
    with load_model(model_file(), [cpu]) as model, LoneText(model) as text:
        expected = text.prefill(LONG[:5]) + bias

    path = model_file(tensors={"output.bias": bias})
    with load_model(path, [cpu]) as model, LoneText(model) as text:
        np.testing.assert_allclose(text.prefill(LONG[:5]), expected, **CLOSE)


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATING)
def test_layers_on_two_devices_give_the_logits_of_one(
    name: str, model_file: Write, walled: Open, cpu: Backend
) -> None:
    path = model_file(name)
    with load_model(path, [cpu]) as model, LoneText(model) as text:
        expected = [text.prefill(LONG[:30]), text.decode(7)]

    backends = [walled("walled:0"), walled("walled:1")]
    with (
        load_model(path, backends, layers=[1, 1]) as model,
        LoneText(model, kv=tp.F32) as text,
    ):
        found = [text.prefill(LONG[:30]), text.decode(7)]

    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "size"), [(None, 4), (tp.F32, 4), (tp.F16, 2)], ids=["default", "f32", "f16"]
)
def test_cache_has_the_type_asked_for(
    kind: tp.DType | None, size: int, llama: LanguageModel
) -> None:
    with LoneText(llama, 100, kv=kind) as text:
        assert text.runner.cache.nbytes == 2 * 2 * align64(129 * 16 * size)
        assert np.isfinite(text.prefill(LONG[:20])).all()


def align64(size: int) -> int:
    return -(-size // 64) * 64


@pytest.mark.parametrize(("prefers", "dtype"), [(True, tp.F16), (False, tp.F32)])
def test_cache_has_the_type_that_the_stream_prefers(
    prefers: bool, dtype: tp.DType, model_file: Write, walled: Open
) -> None:
    stream = walled()
    stream.prefers_f16 = prefers

    with load_model(model_file(), [stream]) as model, LoneText(model) as text:
        assert text.runner.cache.keys[0].dtype is dtype


def test_context_too_large_for_the_device_is_an_error_that_names_it(
    model_file: Write, walled: Open
) -> None:
    with load_model(model_file(), [walled(limit=100_000)]) as model:
        with pytest.raises(OutOfMemory, match=r"^walled:0: .* bytes asked for, 100000 left"):
            LoneText(model, 1024)

        with LoneText(model, 64) as text:
            assert np.isfinite(text.prefill(LONG[:20])).all()


# --- planned once --------------------------------------------------------------------------------


class Spy:
    """Counts calls of a method and passes them on."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.calls = 0
        original = getattr(kind, name)

        def counted(*args: object, **options: object) -> object:
            self.calls += 1
            return original(*args, **options)

        patch.setattr(kind, name, counted)


def test_decoding_builds_schedules_plans_and_allocates_nothing(
    llama: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoneText(llama) as text:
        text.prefill(LONG[:5])
        text.decode(1)
        spies = [
            Spy(monkeypatch, kind, name)
            for kind, name in (
                (Graph, "__init__"),
                (tp.Tensor, "__post_init__"),
                (Scheduler, "schedule"),
                (CPUPlan, "__init__"),
                (CPUPlan, "_rebind"),
                (BufferType, "alloc"),
            )
        ]

        for id in LONG[:100]:
            text.decode(id)

        assert [spy.calls for spy in spies] == [0] * len(spies)


def test_each_shape_is_planned_once(llama: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = Spy(monkeypatch, Scheduler, "schedule")

    with LoneText(llama) as text:
        for _ in range(3):
            text.rewind()
            text.prefill(LONG[:600])
            for id in LONG[600:610]:
                text.decode(id)

    # 512 tokens, 88 tokens, then one.
    assert scheduled.calls == 3


def test_all_shapes_share_one_arena(llama: LanguageModel, cpu: Backend) -> None:
    with LoneText(llama) as text:
        text.prefill(LONG[:512])
        size = text.runner.scheduler._runs.memory_size(cpu.buffer_type)
        text.prefill(LONG[:60])
        text.decode(1)

        assert text.runner.scheduler._runs.memory_size(cpu.buffer_type) == size


@pytest.mark.parametrize("sizes", [BATCHES, ONE_TEXT], ids=["several texts", "one text"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100, 300, 512, 513, 2000])
def test_batches_have_sixteen_tokens_or_an_eighth_of_padding_at_most(
    count: int, sizes: tuple[int, ...]
) -> None:
    while count:
        read = batch(count, sizes)
        size = size_for(read, sizes)

        assert 0 < read <= min(count, size)
        assert size - read <= max(16, size // 8)
        count -= read


@pytest.mark.parametrize(
    ("counts", "most"), [((17, 25, 33, 49), 1.0625), ((65, 100, 113, 129, 161, 300, 385), 1.25)]
)
def test_a_prompt_of_one_text_is_padded_little(counts: tuple[int, ...], most: float) -> None:
    shapes = Shapes(1, 1024)

    for count in counts:
        shape = shapes.of([Reading(range(count), 0, range(16))])

        assert count <= shape.joined <= count * most


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(64, (64,)), (320, (320,)), (2048, (512, 2048)), (9984, (640, 2496, 9984))],
)
def test_reaches_are_the_rows_of_the_cache_and_quarters_of_them(
    rows: int, expected: tuple[int, ...]
) -> None:
    assert reaches(rows) == expected


# --- refusals ------------------------------------------------------------------------------------


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(OptionError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("ids", [[-1, 5], [5, END + 1]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int], llama: LanguageModel) -> None:
    with Engine(llama) as engine:
        assert refusal(lambda: engine.submit(ids)) == (
            f"prompt: has token ids from {min(ids)} to {max(ids)}, and this model knows 0 to {END}"
        )


def test_empty_prompt_is_refused(llama: LanguageModel) -> None:
    with Engine(llama) as engine:
        assert refusal(lambda: engine.submit([])) == "prompt: has no tokens; give at least one"


@pytest.mark.parametrize("context", [0, -5, 1025])
def test_context_beyond_the_training_is_refused(context: int, llama: LanguageModel) -> None:
    assert refusal(lambda: Engine(llama, context=context)) == (
        f"context: {context} tokens; this model was trained for 1 to 1024"
    )


def test_closed_text_says_so(llama: LanguageModel) -> None:
    text = LoneText(llama)
    text.close()

    with pytest.raises(Closed):
        text.decode(1)
