"""Damaged models: one of our errors, at once, and nothing allocated on the word of the file."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorplug import Backend
from tensorplug.errors import FormatError, OutOfMemory, TensorplugError
from tensorplug.gguf.metadata import Metadata
from tensorplug_llm import Engine, load_model
from tensorplug_llm.arch import architecture_names
from tensorplug_llm.chat import ChatTemplate, encode_chat
from tensorplug_llm.cli import app
from tensorplug_llm.tokenizer.vocabulary import SPECIAL_IDS

Write = Callable[..., Path]
HELLO = [{"role": "user", "content": "Hello"}]


def outcome(path: Path, cpu: Backend, *, chat: bool = False) -> str:
    """Try to use a model: the name of the error, or that it works."""
    try:
        with load_model(path, [cpu]) as model:
            if model.architecture.generates:
                with Engine(model, context=32, texts=1, threaded=False) as engine:
                    engine.score([1, 2, 3])
            else:
                model.embedder().embed([[1, 2, 3]])
            if chat:
                source = ChatTemplate.from_metadata(model.file.metadata).source
                encode_chat(model.tokenizer, ChatTemplate(source, trusted=True), HELLO)
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


VALUES: dict[str, object] = {
    "a bool": True,
    "zero": 0,
    "an integer": 7,
    "a negative integer": -1,
    "a huge integer": (1 << 63) + 1,
    "a number": 0.5,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "a string": "7",
    "an empty string": "",
    "no UTF-8": b"\xff\xfe",
    "integers": [1, 2],
    "one integer": [0],
    "numbers": [0.5, float("nan")],
    "bools": [True, False],
    "strings": ["a", "b"],
    "no text": [b"\xff", b"a \xff"],
}
KEYS = {
    "llama": [
        *("context_length", "embedding_length", "block_count", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
        *("attention.value_length", "attention.layer_norm_rms_epsilon", "expert_count"),
        *("rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scale_linear"),
        *("rope.scaling.factor", "rope.scaling.original_context_length"),
        *("rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast"),
        *("rope.scaling.yarn_beta_slow", "attention.causal", "pooling_type"),
    ],
    "gemma3": [
        *("attention.sliding_window", "attention.sliding_window_pattern"),
        *("final_logit_softcapping", "rope.freq_base_swa"),
    ],
    "gemma2": ["attn_logit_softcapping"],
    "glm4": ["rope.dimension_sections", "nextn_predict_layers"],
    "granitemoe": [
        *("embedding_scale", "residual_scale", "attention.scale", "logit_scale"),
        *("rope.scaling.finetuned", "expert_used_count", "expert_weights_scale"),
        "expert_shared_feed_forward_length",
    ],
    "gemma-embedding": ["dense_2_feat_out"],
    "modern-bert": ["hidden_activation"],
    "lfm2": ["shortconv.l_cache"],
    "mamba2": [
        *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"),
        "ssm.group_count",
    ],
    "qwen3next": ["attention.recurrent_layers", "full_attention_interval"],
    "qwen2moe": ["expert_feed_forward_length"],
    "starcoder2": ["attention.layer_norm_epsilon"],
    "tokenizer": [
        *("ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges"),
        *("ggml.scores", "ggml.add_bos_token", "ggml.add_eos_token", "ggml.add_space_prefix"),
        *(f"ggml.{key}" for key in SPECIAL_IDS.values()),
        *("ggml.add_sep_token", "ggml.token_type_count", "chat_template"),
    ],
    "general": ["architecture", "alignment"],
}
"""Every key that is read, by the first architecture that reads it."""
SOON = ("llama", "gemma3", "tokenizer", "general")


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    ("family", "key"),
    [
        pytest.param(family, key, marks=() if family in SOON else pytest.mark.long)
        for family, keys in KEYS.items()
        for key in keys
    ],
)
def test_metadata_of_any_kind_works_or_is_one_of_our_errors(
    family: str, key: str, kind: str, model_file: Write, cpu: Backend
) -> None:
    architecture = family if family in architecture_names() else "llama"
    path = model_file(architecture, metadata={f"{family}.{key}": VALUES[kind]})

    assert outcome(path, cpu, chat=True) in ("works", "FormatError", "OptionError")


def test_the_sweep_knows_every_key_that_is_read(
    model_file: Write, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    for name in ("__getitem__", "__contains__"):
        usual = getattr(Metadata, name)

        def listen(self: Metadata, key: str, usual: Callable[..., object] = usual) -> object:
            asked.add(key)
            return usual(self, key)

        monkeypatch.setattr(Metadata, name, listen)

    for architecture in architecture_names():
        more = {f"{architecture}.rope.scaling.type": "yarn"}
        assert outcome(model_file(architecture, metadata=more), cpu, chat=True) == "works"

    own = {f"{name}." for name in architecture_names()}
    read = {next((k[len(o) :] for o in own if k.startswith(o)), k) for k in asked}
    listed = {
        key if family in architecture_names() else f"{family}.{key}"
        for family, keys in KEYS.items()
        for key in keys
    }
    assert read <= listed


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "float64"])
def test_weights_that_nothing_multiplies_with_are_refused_before_anything_is_said(
    kind: str, model_file: Write
) -> None:
    path = model_file(tensors={"blk.0.attn_q.weight": np.zeros((32, 32), kind)})

    result = CliRunner().invoke(app, ["generate", str(path), "--prompt", "hello"])

    name = kind.replace("int", "i").replace("float", "f")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"tensorplug-llm: {path}: tensor 'blk.0.attn_q.weight' is {name}, which no device "
        "multiplies with; convert the model to f16 or a block type\n"
    )


@pytest.mark.parametrize(
    ("key", "strings"), [("merges", ["h e", b"h \xed\xa0\x80"]), ("merges", [b"\xff e"])]
)
def test_merges_that_are_no_text_are_named(
    key: str, strings: list[str | bytes], model_file: Write
) -> None:
    path = model_file(metadata={f"tokenizer.ggml.{key}": strings})

    result = CliRunner().invoke(app, ["generate", str(path), "--prompt", "hello"])

    assert result.stderr.startswith(f"tensorplug-llm: tokenizer.ggml.{key}: '")
    assert result.stderr.endswith(
        "' is not UTF-8; the model file is damaged or incomplete: fetch or convert it again\n"
    )


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
