"""Hyper-parameters: read with their defaults, and refused where they cannot be right."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplug.errors import FormatError
from tensorplug.gguf import open_gguf
from tensorplug_llm.arch import architecture_names, architecture_of
from tensorplug_llm.hparams import HParams

Write = Callable[..., Path]
DAMAGED = "; the model is damaged, or of a kind that this version cannot run"


def read(path: Path) -> HParams:
    with open_gguf(path) as file:
        return architecture_of(file).read(file)


def refusal(path: Path) -> str:
    with pytest.raises(FormatError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize("name", architecture_names())
def test_sizes_come_from_the_file(name: str, model_file: Write) -> None:
    hp = read(model_file(name))

    assert (hp.architecture, hp.context, hp.vocabulary) == (name, 1024, 272)
    assert (hp.embedding, hp.layers) == (32, 2)
    assert hp.norm_eps == pytest.approx(1e-5)


@pytest.mark.parametrize("name", [name for name in architecture_names() if name != "mamba2"])
def test_sizes_of_attention_come_from_the_file(name: str, model_file: Write) -> None:
    hp = read(model_file(name))

    assert hp.feed_forward == 48
    assert (hp.heads, hp.kv_heads, hp.key_length, hp.value_length) == (4, 2, 8, 8)
    assert (hp.key_row, hp.value_row) == (16, 16)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("ssm.conv_kernel", 1, "it must be at least 2"),
        ("ssm.time_step_rank", 5, "it must divide 64"),
        ("ssm.group_count", 3, "it must divide 4"),
    ],
)
def test_sizes_of_states_that_cannot_be_right_are_refused(
    key: str, value: int, problem: str, model_file: Write
) -> None:
    path = model_file("mamba2", metadata={f"mamba2.{key}": value})

    assert refusal(path) == f"{path}: metadata 'mamba2.{key}' is {value}, and {problem}{DAMAGED}"


@pytest.mark.parametrize("counts", [2, [0, 0], [0, 3], [1, 2], [0, 2, 2], [0, -2]], ids=str)
def test_heads_of_layers_that_cannot_be_right_are_refused(
    counts: object, model_file: Write
) -> None:
    path = model_file("lfm2", metadata={"lfm2.attention.head_count_kv": counts})

    assert f"metadata 'lfm2.attention.head_count_kv' is {counts!r}, and " in refusal(path)


@pytest.mark.parametrize(
    ("listed", "recurrent"), [(None, {0}), ([True, False], {0}), ([False, True], {1})], ids=str
)
def test_recurrent_layers_are_those_of_the_file(
    listed: list[bool] | None, recurrent: set[int], model_file: Write
) -> None:
    hp = read(model_file("qwen3next", metadata={"qwen3next.attention.recurrent_layers": listed}))

    assert hp.recurrence is not None
    assert hp.recurrence.layers == recurrent


def test_absent_values_have_defaults(model_file: Write) -> None:
    absent = (
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
    )
    hp = read(model_file(metadata={f"llama.{key}": None for key in absent}))

    assert (hp.kv_heads, hp.key_length, hp.value_length) == (4, 8, 8)
    assert (hp.rope.dims, hp.rope.base, hp.rope.scale) == (8, 10000.0, 1.0)
    assert hp.attention_scale == pytest.approx(1 / math.sqrt(8))


@pytest.mark.parametrize(
    ("name", "mode"),
    [("llama", "normal"), ("qwen2", "neox"), ("qwen3", "neox"), ("gemma3", "neox")],
)
def test_pairs_turn_as_the_architecture_wants(name: str, mode: str, model_file: Write) -> None:
    assert read(model_file(name)).rope.mode == mode


@pytest.mark.parametrize(
    ("entries", "scale", "ext_factor"),
    [
        ({}, 1.0, 0.0),
        ({"rope.scale_linear": 4.0}, 0.25, 0.0),
        ({"rope.scaling.factor": 8.0}, 0.125, 0.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 8.0}, 1.0, 0.0),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0}, 0.125, 1.0),
    ],
)
def test_positions_are_stretched_as_the_file_says(
    entries: dict[str, Any], scale: float, ext_factor: float, model_file: Write
) -> None:
    hp = read(model_file(metadata={f"llama.{key}": value for key, value in entries.items()}))

    assert (hp.rope.scale, hp.rope.ext_factor, hp.rope.original_context) == (
        scale,
        ext_factor,
        1024,
    )


def test_gemma_scales_embeddings_and_turns_local_layers_differently(model_file: Write) -> None:
    hp = read(model_file("gemma3", metadata={"gemma3.rope.freq_base": 1e6}))

    assert hp.embedding_scale == pytest.approx(math.sqrt(32))
    assert (hp.rope.base, hp.local_rope.base) == (1e6, 10000.0)


@pytest.mark.parametrize(
    ("pattern", "local"),
    [
        (2, {0}),
        (1, set()),
        (3, {0, 1}),
        ([False, True], {1}),
        ([True, True], {0, 1}),
        (None, {0, 1}),
    ],
)
def test_gemma_layers_are_local_by_pattern(
    pattern: object, local: set[int], model_file: Write
) -> None:
    name = "gemma3.attention.sliding_window_pattern"

    assert read(model_file("gemma3", metadata={name: pattern})).local_layers == local


@pytest.mark.parametrize("window", [None, 0])
def test_gemma_without_a_window_has_no_local_layers(window: object, model_file: Write) -> None:
    hp = read(model_file("gemma3", metadata={"gemma3.attention.sliding_window": window}))

    assert (hp.window, hp.local_layers) == (0, frozenset())


def test_gemma_of_27_billion_scales_attention_by_its_embedding(model_file: Write) -> None:
    fillers = {f"filler.{i}": np.zeros(1, np.float32) for i in range(62)}
    path = model_file(
        "gemma3",
        metadata={
            "gemma3.block_count": 62,
            "gemma3.attention.head_count": 2,
            "gemma3.attention.key_length": 8,
        },
        tensors=fillers,
    )

    assert read(path).attention_scale == pytest.approx(1 / math.sqrt(32 // 2))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("embedding_length", 0, "it must be between 1 and 1048576"),
        ("embedding_length", 1 << 40, "it must be between 1 and 1048576"),
        ("block_count", 1 << 30, "it must be between 1 and 20"),
        ("block_count", -1, "it must be between 1 and 20"),
        ("feed_forward_length", 1 << 62, "it must be between 1 and 1048576"),
        ("context_length", 0, "it must be between 1 and 2147483648"),
        ("attention.head_count", 0, "it must be between 1 and 32"),
        ("attention.head_count_kv", 3, "it must divide the 4 heads"),
        ("attention.head_count_kv", 8, "it must be between 1 and 4"),
        ("attention.key_length", 1 << 30, "it must be between 1 and 1048576"),
        ("rope.dimension_count", 7, "it must be even"),
        ("rope.dimension_count", 16, "it must be between 1 and 8"),
        ("rope.freq_base", 0.0, "it must be positive and finite"),
        ("rope.freq_base", math.inf, "it must be positive and finite"),
        ("attention.layer_norm_rms_epsilon", -1.0, "it must be positive and finite"),
        ("rope.scaling.type", "dynamic", "known are none, linear, yarn, longrope"),
        ("rope.scaling.factor", math.nan, "it must be positive and finite"),
        ("expert_count", -8, "it must be between 1 and 2147483648"),
    ],
)
def test_absurd_values_are_named(key: str, value: Any, problem: str, model_file: Write) -> None:
    path = model_file(metadata={f"llama.{key}": value})

    assert refusal(path) == f"{path}: metadata 'llama.{key}' is {value!r}, and {problem}{DAMAGED}"


def test_experts_of_a_dense_architecture_are_refused(model_file: Write) -> None:
    path = model_file("qwen3", metadata={"qwen3.expert_count": 8})

    assert refusal(path) == (
        f"{path}: metadata 'qwen3.expert_count' is 8, and this architecture has no experts{DAMAGED}"
    )


def test_tokens_take_no_more_experts_than_there_are(model_file: Write) -> None:
    path = model_file("qwen3moe", metadata={"qwen3moe.expert_used_count": 5})

    assert refusal(path) == (
        f"{path}: metadata 'qwen3moe.expert_used_count' is 5, and it must be between 1 and "
        f"4{DAMAGED}"
    )


def test_pattern_shorter_than_the_model_is_refused(model_file: Write) -> None:
    name = "gemma3.attention.sliding_window_pattern"
    path = model_file("gemma3", metadata={name: [True]})

    assert refusal(path) == (
        f"{path}: metadata '{name}' is [True], and it must say so for all 2 layers{DAMAGED}"
    )


@pytest.mark.parametrize("key", ["embedding_length", "block_count", "context_length"])
def test_missing_values_are_named(key: str, model_file: Write) -> None:
    path = model_file(metadata={f"llama.{key}": None})

    assert refusal(path) == (
        f"{path}: metadata 'llama.{key}', an integer, is missing; the model is incomplete: use "
        "another file, or convert the model again"
    )


def test_unknown_architecture_is_answered_with_the_known_ones(model_file: Write) -> None:
    path = model_file(metadata={"general.architecture": None})
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba", 1))

    with pytest.raises(FormatError) as caught, open_gguf(path) as file:
        architecture_of(file)

    assert str(caught.value) == (
        f"{path}: architecture 'mamba' is not installed; there are "
        f"{', '.join(architecture_names())}; docs/adding-an-architecture.md says how to add one"
    )


def test_file_without_an_embedding_table_is_no_language_model(model_file: Write) -> None:
    path = model_file(tensors={"token_embd.weight": None})

    assert refusal(path) == (
        f"{path}: tensor 'token_embd.weight' is missing; the file holds no language model, or only "
        "a part of one"
    )
