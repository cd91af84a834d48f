"""Damaged models: one of our errors, at once, and nothing allocated on the word of the file."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorplug import Backend
from tensorplug.errors import FormatError, OutOfMemory, TensorplugError
from tensorplug_llm import load_model
from tensorplug_llm.cli import app

Write = Callable[..., Path]


def outcome(path: Path, cpu: Backend) -> str:
    """Try to use a model: the name of the error, or that it works."""
    try:
        with load_model(path, [cpu]) as model, model.session(32) as session:
            session.prefill([1, 2, 3])
    except TensorplugError as error:
        return type(error).__name__
    return "works"


@pytest.mark.parametrize("share", [n / 40 for n in range(40)])
def test_truncated_model_is_a_format_error(share: float, model_file: Write, cpu: Backend) -> None:
    path = model_file()
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])

    assert outcome(path, cpu) == "FormatError"


@pytest.mark.parametrize("seed", range(30))
def test_corrupted_model_works_or_is_one_of_our_errors(
    seed: int, model_file: Write, cpu: Backend
) -> None:
    path = model_file()
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    head = 12_000  # metadata and tensor records; damage to weights is a matter of taste
    for position in random.integers(4, head, 3):
        data[position] = random.integers(256)
    path.write_bytes(data)

    assert outcome(path, cpu) in ("works", "FormatError", "OptionError")


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
    ],
)
@pytest.mark.parametrize("value", [(1 << 31) - 1, 1 << 31, 1 << 62])
def test_absurd_sizes_allocate_nothing(
    key: str, value: int, model_file: Write, cpu: Backend
) -> None:
    path = model_file(metadata={f"llama.{key}": value})
    tracemalloc.start()

    found = outcome(path, cpu)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found in ("FormatError", "works")  # a huge context is a claim about training
    assert peak < 20 << 20


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.model": "wordpiece"}, "tokenizer.ggml.model"),
        ({"llama.block_count": "two"}, "metadata 'llama.block_count' is 'two'"),
        (
            {"llama.attention.head_count": [4, 4]},
            "metadata 'llama.attention.head_count' is an array",
        ),
    ],
)
def test_wrong_metadata_is_named(
    metadata: dict[str, object], message: str, model_file: Write, cpu: Backend
) -> None:
    with pytest.raises(FormatError, match=message):
        load_model(model_file(metadata=metadata), [cpu])


def test_infinite_weights_end_generation_with_a_sentence(model_file: Write) -> None:
    path = model_file(tensors={"output_norm.weight": np.full(32, np.nan, np.float32)})

    result = CliRunner().invoke(app, ["generate", str(path), "--prompt", "hello"])

    assert result.exit_code == 1
    assert result.stderr.endswith(
        "have no greatest number; the model file is damaged, or a device computed wrong: try "
        "another --device\n"
    )


def test_failed_load_leaves_no_memory_behind(
    model_file: Write, walled: Callable[..., Backend]
) -> None:
    backend = walled(limit=20_000)

    with pytest.raises(OutOfMemory):
        load_model(model_file(), [backend])

    assert [child for child in backend.device.children if child is not backend] == []
