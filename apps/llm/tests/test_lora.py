"""LoRA adapters: what NumPy merges, and what llama.cpp computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import LoRA, load_model
from tensorplug_llm.cli import app
from tensorplug_llm.fit import fit
from tensorplug_llm.folders.made import decoded
from tensorplug_llm.opening import open_model
from tensorplug_llm.testing import tiny_models
from tensorplug_llm.testing.model_tests import read_at_once

from . import hf_folders, lora_files
from .test_cli import CHEAP

RECORDED = np.load(Path(__file__).with_name("lora_logits.npz"))["logits"]
"""llama.cpp's with the adapter at SCALE: `make_lora_logits.py`."""
NAME = "llama-f16"
IDS = hf_folders.prompt(NAME)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hf_folders.write(NAME, tmp_path / "model")


def logits(path: Path, lora: list[LoRA]) -> np.ndarray[Any, Any]:
    with tp.open("cpu?activations=f32") as cpu, load_model(path, [cpu], lora=lora) as model:
        return read_at_once(model, IDS)


def distance(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def merged(scales: dict[int, float]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The weights of the folder with adapters by their seeds, computed by NumPy in f32."""
    values = dict(hf_folders.tensors(NAME))
    for seed, scale in scales.items():
        for name, (down, up) in lora_files.matrices(seed).items():
            values[f"{name}.weight"] += scale * lora_files.ALPHA / lora_files.RANK * (up @ down)
    return {name: ("F32", v.shape, v.astype(np.float32).tobytes()) for name, v in values.items()}


@pytest.mark.parametrize("form", ["file", "folder"])
def test_adapter_gives_the_logits_of_llama_cpp(form: str, folder: Path, tmp_path: Path) -> None:
    make = lora_files.write_file if form == "file" else lora_files.write_folder
    adapter = make(tmp_path / "adapter")

    found = logits(folder, [LoRA(adapter, lora_files.SCALE)])[list(hf_folders.RECORDED)]

    # The merged weights are f16, as those of the model; llama.cpp adds the product in f32.
    assert distance(found, RECORDED) < 1e-3
    hf_folders.write_weights(folder, merged({}), 1)
    exact = logits(folder, [LoRA(adapter, lora_files.SCALE)])[list(hf_folders.RECORDED)]
    assert distance(exact, RECORDED) < 5e-5
    assert distance(logits(folder, [])[list(hf_folders.RECORDED)], RECORDED) > 0.1


def test_several_adapters_add_up_as_numpy_merges_them(folder: Path, tmp_path: Path) -> None:
    lora = [
        LoRA(lora_files.write_folder(tmp_path / "one"), 0.5),
        LoRA(lora_files.write_file(tmp_path / "two.gguf", seed=6), -1.5),
    ]
    twin = hf_folders.write(NAME, tmp_path / "twin")
    hf_folders.write_weights(twin, merged({5: 0.5, 6: -1.5}), 1)

    with open_model(folder, lora) as file, open_model(twin) as wanted:
        for name in ("blk.1.attn_q.weight", "blk.2.ffn_down.weight", "blk.0.attn_v.weight"):
            found = decoded(file, file.find(name))
            expected = decoded(wanted, wanted.find(name))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    assert distance(logits(folder, lora), logits(twin, [])) < 3e-3  # of f16


def test_adapted_matrices_are_f16_and_the_others_stay(folder: Path, tmp_path: Path) -> None:
    adapter = LoRA(lora_files.write_file(tmp_path / "adapter.gguf"))
    plain = hf_folders.write("llama-bf16", tmp_path / "bf16")

    with open_model(plain, [adapter]) as file:
        found = {name: t.dtype.name for name, t in file.tensors.items() if "blk.0" in name}
        assert file.memory_of("blk.0.attn_v.weight") is not None
        assert file.memory_of("blk.0.ffn_up.weight") is None
        whole = file.tensor_bytes("blk.0.ffn_up.weight").tobytes()
        assert file.part_of("blk.0.ffn_up.weight", 100, 333).tobytes() == whole[100:433]
    assert found["blk.0.attn_q.weight"] == found["blk.0.ffn_up.weight"] == "f16"
    assert found["blk.0.attn_v.weight"] == "bf16"


def test_scale_of_zero_changes_nothing(folder: Path, tmp_path: Path) -> None:
    adapter = LoRA(lora_files.write_folder(tmp_path / "adapter"), 0.0)

    np.testing.assert_array_equal(logits(folder, [adapter]), logits(folder, []))


def test_rank_stabilized_adapter_is_divided_by_the_root(folder: Path, tmp_path: Path) -> None:
    plain = LoRA(lora_files.write_folder(tmp_path / "plain"), np.sqrt(lora_files.RANK))
    stable = LoRA(lora_files.write_folder(tmp_path / "stable", use_rslora=True))

    np.testing.assert_allclose(logits(folder, [stable]), logits(folder, [plain]), atol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is 'IA3', and known is LORA"),
        ({"use_dora": True}, "'use_dora' is True, and it is not supported; merge the adapter"),
        ({"rank_pattern": {"q": 8}}, "'rank_pattern' is {'q': 8}, and it is not supported"),
        ({"layer_replication": [[0, 2]]}, "'layer_replication' is [[0, 2]], and it is not"),
        ({"alora_invocation_tokens": [1]}, "'alora_invocation_tokens' is [1], and it is not"),
        ({"init_lora_weights": "olora"}, "'init_lora_weights' is 'olora', and it is not"),
        ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights' is 'pissa_niter_4', and"),
        ({"init_lora_weights": [1]}, "'init_lora_weights' is [1], and it is not"),
        ({"lora_alpha": "6"}, "'lora_alpha' is '6', and a positive number is needed"),
    ],
)
def test_unsupported_adapter_is_an_error_that_names_the_setting(
    config: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    adapter = LoRA(lora_files.write_folder(tmp_path / "adapter", **config))

    with pytest.raises(FormatError) as caught:
        open_model(folder, [adapter])

    assert message in str(caught.value)


@pytest.mark.parametrize("start", [True, False, None, "gaussian"])
def test_adapter_is_what_its_weights_are_however_they_began(
    start: Any, folder: Path, tmp_path: Path
) -> None:
    plain = LoRA(lora_files.write_folder(tmp_path / "plain"))
    begun = LoRA(lora_files.write_folder(tmp_path / "begun", init_lora_weights=start))

    np.testing.assert_array_equal(logits(folder, [begun]), logits(folder, [plain]))


def test_adapter_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = hf_folders.write("qwen3", tmp_path / "other")
    file = LoRA(lora_files.write_file(tmp_path / "adapter.gguf"))
    peft = LoRA(lora_files.write_folder(tmp_path / "adapter"))

    with pytest.raises(FormatError, match="is for the architecture 'llama', and the model is 'qw"):
        open_model(other, [file])
    with pytest.raises(FormatError, match=r"adapts the tensor 'blk.0.attn_q.weight', of 64 x 64, "):
        open_model(other, [peft])
    tiny_models.write("llama", tmp_path / "llama.gguf")
    with pytest.raises(FormatError, match=r"metadata 'general\.type', a string, is missing"):
        open_model(folder, [LoRA(tmp_path / "llama.gguf")])


def test_scale_that_f16_cannot_hold_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = LoRA(lora_files.write_folder(tmp_path / "adapter"), 1e9)

    with pytest.raises(FormatError, match="as f16 has them; use a smaller scale"):
        load_model(folder, lora=[adapter])


def test_option_names_files_with_scales(folder: Path, tmp_path: Path) -> None:
    adapter = lora_files.write_file(tmp_path / "adapter.gguf")
    assert LoRA.parse(f"{adapter}:0.5") == LoRA(adapter, 0.5)
    assert LoRA.parse(str(adapter)) == LoRA(adapter)
    with pytest.raises(OptionError, match="is not there, and 'half' is not a scale"):
        LoRA.parse("adapter.gguf:half")

    command = ["generate", str(folder), "--prompt", "ab", "--tokens", "4", "--temperature", "0"]
    plain = CliRunner().invoke(app, [*command, *CHEAP])
    more = CliRunner().invoke(app, [*command, *CHEAP, "--lora", f"{adapter}:3"])

    assert (plain.exit_code, more.exit_code) == (0, 0)
    assert plain.stdout != more.stdout


def test_fit_counts_what_adapters_copy(folder: Path, tmp_path: Path) -> None:
    adapter = LoRA(lora_files.write_file(tmp_path / "adapter.gguf"))
    with tp.open("cpu") as cpu:
        plain = fit(folder, [cpu], weights="mapped").devices[0]
        more = fit(folder, [cpu], weights="mapped", lora=[adapter]).devices[0]

    copied = 3 * 2 * (64 * 64 + 96 * 64 * 2)  # queries and keys are copies in any case
    assert more.weights - plain.weights == copied
    assert more.mapped == plain.mapped - copied
