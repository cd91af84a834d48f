"""Weights: checked against the architecture, then mapped, expanded or uploaded."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorplug import Backend
from tensorplug.device import Memory
from tensorplug.errors import FormatError, OptionError, OutOfMemory
from tensorplug_llm import LanguageModel, WeightMode, load_model
from tensorplug_llm.testing import LoneText

from .gguf_files import VOCABULARY, random_tensors

Write = Callable[..., Path]
Open = Callable[..., Backend]
HALVES = {
    name: array.astype(np.float16)
    for name, array in random_tensors("llama", 0).items()
    if array.ndim == 2
}
"""Matrices of another type than f32, which can be expanded."""


def homes(model: LanguageModel) -> dict[str, str]:
    """The kind of memory of each weight."""
    found = {}
    for name, tensor in model.weights.tensors.items():
        assert tensor.place is not None
        found[name] = tensor.place.buffer.type.name
    return found


def refusal(path: Path, cpu: Backend) -> str:
    with pytest.raises(FormatError) as caught:
        load_model(path, [cpu])
    return str(caught.value)


# --- checks --------------------------------------------------------------------------------------


def test_missing_tensor_is_named_with_its_sizes(model_file: Write, cpu: Backend) -> None:
    path = model_file(tensors={"blk.1.attn_k.weight": None})

    assert refusal(path, cpu) == (
        f"{path}: tensor 'blk.1.attn_k.weight' 32 x 16 is missing; the model is incomplete: fetch "
        "the file again"
    )


@pytest.mark.parametrize(
    ("shape", "sizes"), [((32, 16), "16 x 32"), ((16, 33), "33 x 16"), ((512,), "512")]
)
def test_tensor_of_wrong_shape_is_named_with_both_shapes(
    shape: tuple[int, ...], sizes: str, model_file: Write, cpu: Backend
) -> None:
    path = model_file(tensors={"blk.0.attn_k.weight": np.zeros(shape, np.float32)})

    assert refusal(path, cpu) == (
        f"{path}: tensor 'blk.0.attn_k.weight' is {sizes}, and 32 x 16 was expected; its metadata "
        "and its tensors contradict each other: fetch or convert the model again"
    )


def test_vector_that_is_not_f32_is_refused(model_file: Write, cpu: Backend) -> None:
    path = model_file(tensors={"output_norm.weight": np.zeros(32, np.float16)})

    assert refusal(path, cpu) == (
        f"{path}: tensor 'output_norm.weight' is f16, and vectors must be f32; convert the "
        "model again"
    )


def test_unknown_tensor_is_refused_not_left_out(model_file: Write, cpu: Backend) -> None:
    path = model_file(tensors={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})

    assert refusal(path, cpu) == (
        f"{path}: tensor 'blk.0.attn_sinks.weight' has no place in this architecture, and leaving "
        "it out would give wrong answers; use a newer tensorplug-llm"
    )


def test_vocabulary_larger_than_the_embedding_table_is_refused(
    model_file: Write, cpu: Backend
) -> None:
    path = model_file(tensors={"token_embd.weight": np.zeros((200, 32), np.float32)})

    assert refusal(path, cpu) == (
        f"{path}: the tokenizer has 258 tokens, and the embedding table 200 rows; convert the "
        "model again"
    )


# --- kinds of memory -----------------------------------------------------------------------------


def test_f32_weights_stay_in_the_mapped_file(model_file: Write, cpu: Backend) -> None:
    with load_model(model_file(), [cpu]) as model:
        table = model.weights.tensors["token_embd.weight"]

        assert set(homes(model).values()) == {"cpu_mapped"}
        assert np.shares_memory(table.numpy(), model.file.memory)


@pytest.mark.parametrize(
    ("mode", "home"),
    [("auto", "cpu_f32"), ("f32", "cpu_f32"), (WeightMode.MAPPED, "cpu_mapped")],
)
def test_other_weights_are_expanded_unless_told_otherwise(
    mode: WeightMode | str, home: str, model_file: Write, cpu: Backend
) -> None:
    with load_model(model_file(tensors=HALVES), [cpu], weights=mode) as model:
        assert homes(model)["blk.0.ffn_up.weight"] == home
        assert homes(model)["output_norm.weight"] == "cpu_mapped"


def test_weights_are_mapped_where_expanding_takes_more_than_half_of_free_memory(
    model_file: Write, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(cpu.device), "memory", lambda _: Memory(100_000, 200_000))

    with load_model(model_file(tensors=HALVES), [cpu]) as model:
        assert set(homes(model).values()) == {"cpu_mapped"}


def test_embedding_that_is_no_output_too_is_never_expanded(model_file: Write, cpu: Backend) -> None:
    output = {"output.weight": np.zeros((VOCABULARY, 32), np.float16)}

    with load_model(model_file(tensors=HALVES | output), [cpu]) as model:
        assert homes(model)["token_embd.weight"] == "cpu_mapped"
        assert homes(model)["output.weight"] == "cpu_f32"


def test_tensors_at_crooked_offsets_are_copied(model_file: Write, cpu: Backend) -> None:
    odd = {"blk.0.attn_norm.weight": np.ones(32, np.float32)}
    path = model_file(metadata={"general.alignment": 4}, tensors=odd)

    with load_model(path, [cpu]) as model, LoneText(model) as text:
        kinds = set(homes(model).values())

        assert kinds <= {"cpu", "cpu_mapped"}
        assert np.isfinite(text.prefill([1, 2, 3])).all()


def test_devices_with_their_own_memory_get_copies_and_report_progress(
    model_file: Write, walled: Open
) -> None:
    steps: list[tuple[int, int]] = []

    with load_model(model_file(), [walled()], progress=lambda *s: steps.append(s)) as model:
        assert set(homes(model).values()) == {"walled:0"}
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1] == sum(t.nbytes for t in model.file.tensors.values())


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("f32", "walled:0 cannot store weights expanded to f32; leave the option out"),
        ("packed", "walled:0 cannot pack weights; leave the option out"),
    ],
)
def test_wishes_that_no_device_can_grant_are_refused(
    mode: str, reason: str, model_file: Write, walled: Open
) -> None:
    with pytest.raises(OptionError) as caught:
        load_model(model_file(), [walled()], weights=mode)

    assert str(caught.value) == f"weights: {reason}"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shortens no file that is mapped")
@pytest.mark.parametrize("left", [0, 5000, 40_000])
def test_a_file_that_is_shortened_while_it_is_loaded_is_an_error(
    left: int, model_file: Write, walled: Open
) -> None:
    path = model_file()

    with pytest.raises(FormatError) as caught:
        load_model(path, [walled()], progress=lambda *_: os.truncate(path, left))

    assert str(caught.value).startswith(f"{path}: was shortened while it was read: it had ")


def test_full_device_is_an_error_that_names_it(model_file: Write, walled: Open) -> None:
    with pytest.raises(OutOfMemory, match=r"^walled:0: .* bytes asked for, 1000 left"):
        load_model(model_file(), [walled(limit=1000)])


def test_closing_the_model_frees_weights_and_leaves_given_backends_open(
    model_file: Write, cpu: Backend
) -> None:
    model = load_model(model_file(tensors=HALVES), [cpu])
    text = LoneText(model)

    model.close(force=True)

    assert model.closed
    assert text.closed
    assert model.file.closed
    assert all(buffer.closed for buffer in model.weights.buffers)
    assert not cpu.closed
