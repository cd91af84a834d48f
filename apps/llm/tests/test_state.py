"""Saved states: a text's keys and values in a file. tests/attack damages them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import Engine, LanguageModel, LoRA, SamplingParams, load_model
from tensorplug_llm.cli import app
from tensorplug_llm.testing import tiny_models

from . import hf_folders, lora_files

Write = Callable[..., Path]

PROMPT = [40 + (7 * i) % 60 for i in range(150)]
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture
def model(model_file: Write, cpu: Backend) -> Iterator[LanguageModel]:
    with load_model(model_file(), [cpu]) as model:
        yield model


def engine_of(model: LanguageModel, **options: object) -> Engine:
    return Engine(model, context=256, texts=1, threaded=False, **options)


def saved(model: LanguageModel, path: Path, **options: object) -> list[int]:
    """Save the state of the prompt; return the tokens that follow it."""
    with engine_of(model, **options) as engine:
        said = engine.submit(PROMPT, GREEDY).result()
        engine.save_state(path, PROMPT)
    return said


@pytest.mark.parametrize("kv", [tp.F16, tp.F32], ids=str)
def test_restored_prompt_is_not_read_again(
    kv: tp.DType, model: LanguageModel, tmp_path: Path
) -> None:
    said = saved(model, tmp_path / "state", kv=kv)

    with engine_of(model, kv=kv) as engine:
        assert engine.load_state(tmp_path / "state") == len(PROMPT)
        assert engine.submit(PROMPT, GREEDY).result() == said
        assert engine._batcher.reused == len(PROMPT) - 1


def test_saving_touches_no_other_file_and_follows_links(
    model: LanguageModel, tmp_path: Path
) -> None:
    (tmp_path / "link.part").write_text("my notes")
    (tmp_path / "link").symlink_to("state")

    saved(model, tmp_path / "link")

    assert (tmp_path / "link.part").read_text() == "my notes"
    assert (tmp_path / "link").is_symlink()
    with engine_of(model) as engine:
        assert engine.load_state(tmp_path / "state") == len(PROMPT)


def test_prompt_that_goes_another_way_reads_the_rest(model: LanguageModel, tmp_path: Path) -> None:
    saved(model, tmp_path / "state")
    other = [*PROMPT[:100], *range(90, 60, -1)]
    with engine_of(model) as engine:
        said = engine.submit(other, GREEDY).result()

    with engine_of(model) as engine:
        engine.load_state(tmp_path / "state")
        assert engine.submit(other, GREEDY).result() == said
        assert engine._batcher.reused == 100


def test_smaller_cache_takes_the_beginning(model: LanguageModel, tmp_path: Path) -> None:
    said = saved(model, tmp_path / "state")

    with Engine(model, context=256, rows=192, texts=1, threaded=False) as engine:
        assert engine.load_state(tmp_path / "state") == 150
    with Engine(model, context=128, rows=128, texts=1, threaded=False) as engine:
        assert engine.load_state(tmp_path / "state") == 128
        assert engine.submit(PROMPT[:100], GREEDY).result()
    assert len(said) == 6


def test_state_on_devices_with_memory_of_their_own_is_the_same(
    model_file: Write, walled: Callable[..., Backend], cpu: Backend, tmp_path: Path
) -> None:
    with load_model(model_file(), [cpu]) as model:
        said = saved(model, tmp_path / "state", kv=tp.F32)
    with load_model(model_file(), [walled(), cpu], layers=[1, 1]) as model:
        saved(model, tmp_path / "other", kv=tp.F32)
        with engine_of(model, kv=tp.F32) as engine:
            engine.load_state(tmp_path / "state")
            assert engine.submit(PROMPT, GREEDY).result() == said


def test_state_of_another_model_is_refused(
    model_file: Write, model: LanguageModel, cpu: Backend, tmp_path: Path
) -> None:
    saved(model, tmp_path / "state")
    other = tmp_path / "other.gguf"
    tiny_models.write("llama", other)

    with (
        load_model(other, [cpu]) as second,
        engine_of(second) as engine,
        pytest.raises(FormatError, match=r"state: was saved by another model; give another file"),
    ):
        engine.load_state(tmp_path / "state")


@pytest.mark.parametrize("saved_by", ["with", "without"])
def test_state_of_a_model_with_an_adapter_is_not_that_of_one_without(
    saved_by: str, cpu: Backend, tmp_path: Path
) -> None:
    folder = hf_folders.write("llama-f16", tmp_path / "model")
    adapters = [LoRA(lora_files.write_folder(tmp_path / "adapter"))]
    ways = {"with": adapters, "without": []}
    with load_model(folder, [cpu], lora=ways.pop(saved_by)) as model:
        saved(model, tmp_path / "state")
        with engine_of(model) as engine:
            assert engine.load_state(tmp_path / "state") == len(PROMPT)

    with (
        load_model(folder, [cpu], lora=next(iter(ways.values()))) as model,
        engine_of(model) as engine,
        pytest.raises(FormatError, match=r"state: was saved by another model; give another file"),
    ):
        engine.load_state(tmp_path / "state")


def test_state_of_a_cache_of_another_type_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    saved(model, tmp_path / "state", kv=tp.F16)

    with (
        engine_of(model, kv=tp.F32) as engine,
        pytest.raises(FormatError, match=r"was saved from a cache of other types; give the same"),
    ):
        engine.load_state(tmp_path / "state")


@pytest.mark.parametrize("content", [b"", b"TPSTATE", b"GGUF" + bytes(100)], ids=repr)
def test_file_of_another_kind_is_refused(
    content: bytes, model: LanguageModel, tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(content)

    with engine_of(model) as engine, pytest.raises(FormatError, match="is not a saved state"):
        engine.load_state(tmp_path / "state")


def test_newer_version_is_named(model: LanguageModel, tmp_path: Path) -> None:
    saved(model, tmp_path / "state")
    data = bytearray((tmp_path / "state").read_bytes())
    data[8] = 9
    (tmp_path / "state").write_bytes(data)

    with engine_of(model) as engine, pytest.raises(FormatError, match="has version 9 of saved"):
        engine.load_state(tmp_path / "state")


def test_engine_with_a_thread_saves_nothing(model: LanguageModel, tmp_path: Path) -> None:
    with Engine(model, context=256) as engine, pytest.raises(OptionError, match="threaded=False"):
        engine.save_state(tmp_path / "state", PROMPT)


def test_folder_that_is_not_there_is_named(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none/state: No such file or directory; give another"):
        saved(model, tmp_path / "none" / "state")


@pytest.mark.parametrize("folder", ["", ".", "..", "/"])
def test_folder_in_the_place_of_a_state_is_one_line(folder: str, model_file: Write) -> None:
    given = ["generate", str(model_file()), "--device", "cpu?threads=1", "--prompt", "a prompt"]

    found = CliRunner().invoke(app, [*given, "--state", folder])

    assert found.exit_code == 1
    assert found.stderr == (
        f"tensorplug-llm: {Path(folder)}: is a folder; give the path of a file for the state\n"
    )


def test_command_saves_the_state_and_reads_it(model_file: Write, tmp_path: Path) -> None:
    state = tmp_path / "state"
    given = ["generate", str(model_file()), "--device", "cpu?threads=1", "--temp", "0"]
    given += ["--prompt", "a long prompt", "--tokens", "8", "--state", str(state), "--json"]

    first = CliRunner().invoke(app, given)
    size = state.stat().st_size
    second = CliRunner().invoke(app, given)

    assert first.exit_code == second.exit_code == 0, second.output
    assert size == state.stat().st_size
    texts = [run.stdout.partition('"timings"')[0] for run in (first, second)]
    assert texts[0] == texts[1]


def test_state_of_a_model_with_another_rope_base_is_refused(
    model_file: Write, model: LanguageModel, cpu: Backend, tmp_path: Path
) -> None:
    saved(model, tmp_path / "state")
    other = model_file(metadata={"llama.rope.freq_base": 20000.0})

    with (
        load_model(other, [cpu]) as second,
        engine_of(second) as engine,
        pytest.raises(FormatError, match=r"state: was saved by another model; give another file"),
    ):
        engine.load_state(tmp_path / "state")


def test_state_of_a_context_with_other_rope_factors_is_refused(
    cpu: Backend, tmp_path: Path
) -> None:
    tiny_models.write("phi3-long", tmp_path / "m.gguf")
    with load_model(tmp_path / "m.gguf", [cpu]) as model:
        assert 32 < model.hparams.rope.original_context < 256
        with Engine(model, context=32, texts=1, threaded=False) as engine:
            engine.submit(PROMPT[:20], GREEDY).result()
            engine.save_state(tmp_path / "state", PROMPT[:20])

        with (
            engine_of(model) as engine,
            pytest.raises(FormatError, match=r"\(rope_factors_long.weight now\); give the same"),
        ):
            engine.load_state(tmp_path / "state")


def test_command_refuses_a_state_that_cannot_be_written_before_it_generates(
    model_file: Write, tmp_path: Path
) -> None:
    given = ["generate", str(model_file()), "--device", "cpu?threads=1", "--prompt", "a prompt"]

    found = CliRunner().invoke(app, [*given, "--state", str(tmp_path / "none" / "state")])

    assert found.exit_code == 1
    assert "No such file or directory; give another file" in found.stderr
    assert found.stdout == ""
