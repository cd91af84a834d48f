"""Folders of Hugging Face: tiny models of each family give the logits of mlx-lm."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.errors import FormatError
from tensorplug_llm import load_model
from tensorplug_llm.cli import app
from tensorplug_llm.folders import open_folder
from tensorplug_llm.models import name_of
from tensorplug_llm.testing import LoneText
from tensorplug_llm.testing.model_tests import read_at_once

from . import hf_folders
from .test_cli import CHEAP

LOGITS = np.load(Path(__file__).with_name("folder_logits.npz"))
LIMITS = {"starcoder2": 3e-4}
"""mlx-lm computes the exact GELU there, and config.json wants that by tanh; others 1e-4."""


def logits(path: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits of each token, in f32."""
    with tp.open("cpu?activations=f32") as cpu, load_model(path, [cpu]) as model:
        return read_at_once(model, ids)


@pytest.mark.parametrize("name", hf_folders.FOLDERS)
def test_logits_of_a_folder_equal_those_of_mlx_lm(name: str, tmp_path: Path) -> None:
    path = hf_folders.write(name, tmp_path / name)

    with (
        tp.open("cpu?activations=f32") as cpu,
        load_model(path, [cpu]) as model,
        LoneText(model, kv=tp.F32) as lone,
    ):
        found = lone.score(hf_folders.prompt(name))[list(hf_folders.RECORDED)]

    wanted = LOGITS[name]
    assert np.linalg.norm(found - wanted) < LIMITS.get(name, 1e-4) * np.linalg.norm(wanted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folders.write("llama-bf16", tmp_path / "tiny")


def change(path: Path, **values: Any) -> None:
    """Change settings of a config.json; None removes one."""
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_matrices_are_mapped_and_the_rest_is_copied(folder: Path) -> None:
    with open_folder(folder) as file:
        mapped = {name for name in file.tensors if file.memory_of(name) is not None}
        table = file.tensor_bytes("token_embd.weight")

        assert np.shares_memory(table, file.memory_of("token_embd.weight"))
    assert {name.rpartition("blk.2.")[2] for name in mapped if "blk.2." in name} == {
        *("attn_v.weight", "attn_output.weight"),
        *("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
    }


@pytest.mark.parametrize("name", ["llama", "mixtral", "granitemoe", "gemma2"])
def test_parts_of_every_tensor_make_the_whole(name: str, tmp_path: Path) -> None:
    with open_folder(hf_folders.write(name, tmp_path)) as file:
        for tensor in file.tensors.values():
            whole = file.tensor_bytes(tensor.name).tobytes()
            parts = [
                file.read_tensor(tensor.name, start, min(100, tensor.nbytes - start)).tobytes()
                for start in range(0, tensor.nbytes, 100)
            ]
            assert b"".join(parts) == whole
            assert len(whole) == tensor.nbytes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "bloom"},
            "'model_type' is 'bloom', and known are bert, cohere, gemma2, ",
        ),
        ({"model_type": None}, "'model_type' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64', and a positive integer is needed"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1, and a positive integer is needed"),
        ({"num_hidden_layers": 2**30}, "'llama.block_count' is 1073741824"),
        ({"num_hidden_layers": 4}, "tensor 'model.layers.3.input_layernorm.weight' 64 is missing"),
        ({"num_hidden_layers": 2}, "tensor 'model.layers.2.input_layernorm.weight' has no place"),
        ({"num_attention_heads": 5}, "has 64 rows, not a multiple of 2 x 5 heads"),
        ({"intermediate_size": 97}, "'model.layers.0.mlp.gate_proj.weight' is 64 x 96, and 64 x 9"),
        ({"hidden_act": "relu"}, "'hidden_act' is 'relu', and this architecture has silu"),
        ({"rope_scaling": {"type": "new"}}, "'type' is 'new', and known are default, dynamic, "),
        ({"quantization_config": {"quant_method": "gptq"}}, "the weights are quantised by 'gptq'"),
        ({"tie_word_embeddings": "no"}, "'tie_word_embeddings' is 'no', and true or false"),
    ],
)
def test_wrong_config_is_an_error_that_names_the_setting(
    values: dict[str, Any], message: str, folder: Path
) -> None:
    change(folder / "config.json", **values)

    with pytest.raises(FormatError) as caught:
        load_model(folder)

    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"has no \*\.safetensors; pytorch_model\.bin is there"):
        open_folder(folder)
    (folder / "pytorch_model.bin").rename(folder / "a.safetensors")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FormatError, match=r"tokenizer\.json: No such file or directory; fetch"):
        open_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FormatError, match=r"has no config\.json, so it is not a model; give"):
        open_folder(folder)


def test_a_folder_of_gguf_files_is_no_model_and_the_error_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    with pytest.raises(FormatError, match=r"give a GGUF file, such as .*/a\.gguf$"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("../model.safetensors", "'../model.safetensors' is not a file of the folder"),
        (3, "3 is not a file of the folder"),
        ("other.safetensors", "other.safetensors: No such file or directory"),
        ("model-00002-of-00003.safetensors", "'model.embed_tokens.weight' should be in model-0000"),
    ],
)
def test_wrong_index_is_an_error(place: Any, message: str, tmp_path: Path) -> None:
    folder = hf_folders.write("llama", tmp_path)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.embed_tokens.weight"] = place
    path.write_text(json.dumps(index))

    with pytest.raises(FormatError) as caught:
        open_folder(folder)

    assert message in str(caught.value)


def test_text_part_of_a_model_with_images_is_read(tmp_path: Path) -> None:
    text = hf_folders.write("gemma3_text", tmp_path)
    config = json.loads((text / "config.json").read_text())
    entries = {
        f"language_model.{name}": ("F32", values.shape, values.tobytes())
        for name, values in hf_folders.tensors("gemma3_text")
    }
    entries["vision_tower.weight"] = ("U8", (1, 1, 1, 1, 1), b"1")
    hf_folders.write_weights(text, entries, 1)
    (text / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))

    with load_model(text) as model, LoneText(model) as lone:
        assert model.hparams.architecture == "gemma3"
        assert np.isfinite(lone.prefill([1, 5])).all()


def test_folder_stands_where_a_model_does_in_commands(folder: Path) -> None:
    invoke = CliRunner().invoke
    made = invoke(app, ["generate", str(folder), "--prompt", "ab", "--tokens", "3", *CHEAP])
    fits = invoke(app, ["fit", str(folder), "--json", *CHEAP])

    assert (made.exit_code, fits.exit_code) == (0, 0)
    assert made.stdout.startswith("ab")
    assert json.loads(fits.stdout)["model"] == "tiny"
    assert name_of(str(folder)) == "tiny"
