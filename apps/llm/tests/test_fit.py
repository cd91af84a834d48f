"""`fit`: says before loading what loading allocates."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug import Backend
from tensorplug.device import Buffer
from tensorplug.errors import OptionError
from tensorplug_llm import Engine, LanguageModel, load_model
from tensorplug_llm.cache import PAGE
from tensorplug_llm.cli import app
from tensorplug_llm.fit import extent, fit, logits_extent
from tensorplug_llm.placement import SHARE
from tensorplug_llm.testing import LoneText, tiny_models

Write = Callable[..., Path]
Open = Callable[..., Backend]


def weights_on(model: LanguageModel, backend: Backend) -> int:
    return sum(b.size for b in model.weights.buffers if b.type.device is backend.device)


@pytest.mark.parametrize("kv", [tp.F16, tp.F32], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe", "phi3"])
def test_sizes_are_those_that_are_allocated(
    name: str, kv: tp.DType, model_file: Write, walled: Open, cpu: Backend
) -> None:
    path, streams = model_file(name), [walled("walled:0"), walled("walled:1"), cpu]

    found = fit(path, streams, context=500, kv=kv, layers=[1, 1, 0])

    with (
        load_model(path, streams, layers=[1, 1, 0]) as model,
        LoneText(model, 500, kv=kv) as text,
    ):
        runner = text.runner
        runner.step(max(runner.shapes.all(), key=extent)).run(())
        for need, backend in zip(found.devices, streams, strict=True):
            assert need.cache == runner.cache.sizes.get(backend.buffer_type, 0)
            assert need.compute == runner.scheduler.buffer_size(backend)
        for need, backend in zip(found.devices[:2], streams, strict=False):
            assert (need.layers, need.weights, need.mapped) == (1, weights_on(model, backend), 0)


@pytest.mark.long
@pytest.mark.parametrize(("split", "drafts"), [("layer", 63), ("tensor", 0)])
@pytest.mark.parametrize("context", [60, 500])
def test_engine_with_all_passes_takes_what_was_said(
    context: int, split: str, drafts: int, model_file: Write, walled: Open, cpu: Backend
) -> None:
    path, devices = model_file(), [walled("walled:0"), walled("walled:1")]

    found = fit(path, devices, context=context, kv=tp.F32, split=split, prompt_lookup=drafts)

    with (
        load_model(path, devices, split=split) as model,
        drafting(model, context, drafts) as engine,
    ):
        engine.prepare()
        held = [held_by(device) for device in devices]
    assert [need.total for need in found.devices[:2]] == held


def test_engine_over_devices_of_other_processes_takes_what_was_said(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, devices = model_file(), [walled("walled:0"), walled("walled:1")]
    for backend in devices:
        monkeypatch.setattr(backend.device, "remote", True)

    found = fit(path, devices, context=60, kv=tp.F32, sequences=4, contexts=1)

    with (
        load_model(path, devices) as model,
        Engine(model, context=60, rows=60, texts=4, kv=tp.F32, threaded=False) as engine,
    ):
        engine.prepare()
        held = [held_by(device) for device in devices]
    assert [need.total for need in found.devices[:2]] == held


def test_logits_of_drafts_are_counted_where_devices_have_parts_of_layers(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    path, devices = model_file(), [walled("walled:0"), walled("walled:1")]
    plain, found = (
        fit(path, devices, context=60, kv=tp.F32, split="tensor", prompt_lookup=n) for n in (0, 63)
    )

    with load_model(path, devices, split="tensor") as model, drafting(model, 60) as engine:
        runner = engine._batcher.runner
        runner.step(max(runner.shapes.all(), key=logits_extent)).run(())
        held = [held_by(device) for device in devices]
    assert [need.total for need in found.devices[:2]] == held
    assert sum(held) > sum(need.total for need in plain.devices[:2])


def drafting(model: LanguageModel, context: int, drafts: int = 63) -> Engine:
    """An engine of one text."""
    return Engine(
        model,
        context=context,
        rows=context,
        texts=1,
        kv=tp.F32,
        prompt_lookup=drafts,
        threaded=False,
    )


def test_context_that_fits_leaves_room_for_drafts(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    path, asked = model_file(), {"layers": [2], "kv": tp.F32}
    drafting = fit(path, [walled(), cpu], context=PAGE, prompt_lookup=63, **asked).devices[0]
    streams = [walled("walled:1", free=int(drafting.total / SHARE) - 1), cpu]

    assert fit(path, streams, context="auto", **asked).context == PAGE
    with pytest.raises(OptionError, match="context: none fits"):
        fit(path, streams, context="auto", prompt_lookup=63, **asked)


@pytest.mark.parametrize("ratio", [None, (3, 1), (0, 1)], ids=str)
@pytest.mark.parametrize("name", ["llama", "llama-q4_0", "gemma3", "qwen3moe", "qwen3next"])
def test_parts_of_layers_take_the_memory_that_is_allocated(
    name: str, ratio: Sequence[float] | None, tmp_path: Path, walled: Open, cpu: Backend
) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.write(name, path)
    devices = [walled("walled:0"), walled("walled:1")]

    found = fit(path, devices, context=200, split="tensor", ratio=ratio)

    before = [held_by(stream) for stream in devices]
    with (
        load_model(path, devices, split="tensor", ratio=ratio) as model,
        LoneText(model, 200) as text,
    ):
        stored = [held_by(stream) for stream in devices]
        shapes = text.runner.shapes
        text.runner.step(max(shapes.all(), key=extent)).run(())
        held = [held_by(stream) for stream in devices]
    needs = found.devices[:2]
    assert before == [0, 0]
    assert [need.device for need in needs] == ["walled:0", "walled:1"]
    assert [need.weights + need.cache for need in needs] == stored
    assert [need.total for need in needs] == held
    assert {need.layers for need in needs} == {model.hparams.layers}


def test_auto_shares_are_those_of_the_free_memory(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    devices = [walled("walled:0", free=3 << 20), walled("walled:1", free=1 << 20)]

    found = fit(model_file(), devices, context="auto", layers="auto", split="tensor")

    assert found.ratio == (3 << 20, 1 << 20)
    assert found.layers is None
    first, second = found.devices[:2]
    assert first.weights > second.weights
    assert 0 < found.context == found.largest_context
    assert all(need.fits for need in found.devices)


def test_auto_context_of_parts_is_used_by_the_command(model_file: Write) -> None:
    given = ["generate", str(model_file()), "--prompt", "a", "--tokens", "1", "--context", "auto"]
    given += ["--device", "cpu?threads=1", "--device", "cpu@tensorplug-cpu?threads=1"]

    found = CliRunner().invoke(app, [*given, "--split", "tensor", "--layers", "auto"])

    assert found.exit_code == 0, found.output


def held_by(stream: Backend) -> int:
    """Bytes of all buffers in the memory of the stream's device."""
    return sum(child.size for child in stream.device.children if isinstance(child, Buffer))


@pytest.mark.parametrize(
    ("name", "more"), [("llama", {"contexts": 100}), ("mamba2", {"texts": 1000})]
)
def test_layers_leave_room_for_all_that_an_engine_keeps(
    name: str, more: dict[str, int], model_file: Write, walled: Open, cpu: Backend
) -> None:
    counts = []
    for given in ({}, more):
        streams = [walled(f"walled:{len(counts)}", free=1 << 20), cpu]
        with load_model(model_file(name), streams, **given) as model:
            counts.append(model.placement.counts.get(streams[0].name, 0))

    assert counts == [2, 0]


def test_the_largest_context_fits_and_one_of_a_page_more_does_not(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    path = model_file(metadata={"llama.context_length": 1 << 14})
    small = fit(path, [walled("walled:0"), cpu], context=6400, layers=[2, 0]).devices[0]
    streams = [walled("walled:1", free=int(small.total * 1.3)), cpu]

    largest = fit(path, streams, layers=[2, 0]).largest_context

    assert 6400 < largest < 1 << 14
    assert fit(path, streams, context=largest, layers=[2, 0]).fits
    assert not fit(path, streams, context=largest + PAGE, layers=[2, 0]).fits


def test_layers_leave_room_for_the_context(model_file: Write, walled: Open, cpu: Backend) -> None:
    path = model_file(metadata={"llama.context_length": 1 << 16})
    streams = [walled("walled:0", free=1 << 20), cpu]

    few, many = (fit(path, streams, context=context).devices[0] for context in (64, 1 << 16))

    assert (few.layers, many.layers) == (2, 0)


def test_auto_context_is_the_largest_that_fits(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    path = model_file()
    small = fit(path, [walled("walled:0"), cpu], context=128, layers=[2, 0]).devices[0]
    streams = [walled("walled:1", free=int(small.total * 1.3)), cpu]

    found = fit(path, streams, context="auto", layers=[2, 0])

    assert 0 < found.context == found.largest_context < 1024
    assert found.fits
    with (
        load_model(path, streams, layers=found.layers, context=found.context) as model,
        Engine(model, rows=found.context, texts=1, threaded=False) as engine,
    ):
        assert engine.context == found.context


def test_auto_context_without_room_says_what_each_device_would_hold(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    streams = [walled("walled:0", free=1000), cpu]

    with pytest.raises(OptionError, match=r"^context: none fits: walled:0: 2 layers, 0\.. MiB"):
        fit(model_file(), streams, context="auto", layers=[2, 0])


def test_auto_layers_leave_room_for_the_largest_pass(
    model_file: Write, walled: Open, cpu: Backend
) -> None:
    path = model_file()
    every = fit(path, [walled("walled:0"), cpu], layers=[2, 0]).devices[0]
    free = int((every.total - every.compute) * 1.2)

    plain, auto = (
        fit(path, [walled(f"walled:{i}", free=free), cpu], layers=layers)
        for i, layers in ((1, None), (2, "auto"))
    )

    assert (plain.layers, plain.fits) == ((2, 0), False)
    assert (auto.layers[0] < 2, sum(auto.layers), auto.fits) == (True, 2, True)


def test_engine_s_cache_has_room_for_fewer_texts_than_run(model_file: Write, cpu: Backend) -> None:
    path = model_file()

    found = fit(path, [cpu], context=256, sequences=8, contexts=2).devices[0]

    with (
        load_model(path, [cpu], context=256) as model,
        Engine(model, texts=8, threaded=False) as engine,
    ):
        runner = engine._batcher.runner
        runner.step(max(runner.shapes.all(), key=extent)).run(())
        assert found.cache == runner.cache.nbytes
        assert found.compute == runner.scheduler.buffer_size(model.backends[0])


@pytest.mark.parametrize("command", ["generate", "fit"])
def test_commands_take_the_context_that_fits(
    command: str, model_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorplug_llm.fit._largest", lambda sizing, most: 64)
    given = [command, str(model_file()), "--device", "cpu?threads=1", "--context", "auto"]
    prompt = ["--prompt", "x" * 100] if command == "generate" else []

    result = CliRunner().invoke(app, given + prompt)

    assert "64 tokens" in result.output


@pytest.mark.parametrize("context", ["0", "-1", "many", "1.5"])
def test_context_that_is_no_number_is_refused(context: str, model_file: Write) -> None:
    result = CliRunner().invoke(
        app, ["generate", str(model_file()), "--prompt", "x", "--context", context]
    )

    assert result.exit_code == 1
    assert "is not a number of tokens; give one, or auto" in " ".join(result.output.split())


def test_texts_at_the_same_time_have_caches_of_their_own(model_file: Write, cpu: Backend) -> None:
    one, four = (fit(model_file(), [cpu], context=128, sequences=n) for n in (1, 4))

    row = one.devices[0].cache // (128 + 1)
    assert four.devices[0].cache == pytest.approx(row * (4 * 128 + 1), rel=0.02)


def test_memory_that_is_asked_about_is_not_allocated(model_file: Write, cpu: Backend) -> None:
    path = model_file()
    fit(path, [cpu])  # imports
    tracemalloc.start()

    found = fit(path, [cpu], sequences=1000)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20 < found.devices[0].compute


@pytest.mark.parametrize("sequences", [1 << 25, 1 << 60])
def test_more_texts_than_a_cache_has_rows_for_are_refused(
    sequences: int, model_file: Write, cpu: Backend
) -> None:
    with pytest.raises(OptionError, match=rf"{sequences} of 64 rows .* at most 2147483584; give"):
        fit(model_file(), [cpu], context=16, sequences=sequences)


def test_an_encoder_has_no_context(tmp_path: Path, cpu: Backend) -> None:
    tiny_models.write("bert", tmp_path / "bert.gguf")

    with pytest.raises(OptionError, match="an encoder has no context"):
        fit(tmp_path / "bert.gguf", [cpu])


def test_command_reports_devices_as_json(model_file: Write) -> None:
    result = CliRunner().invoke(
        app, ["fit", str(model_file()), "--context", "256", "--device", "cpu?threads=1", "--json"]
    )

    report = json.loads(result.stdout)
    assert (report["fits"], report["context"], report["largest_context"]) == (True, 256, 1024)
    (device,) = report["devices"]
    parts = ("weights", "mapped", "cache", "compute")
    assert device["total"] == sum(device[part] for part in parts) > 0


def test_command_exits_with_1_where_a_model_does_not_fit(
    model_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorplug_llm.fit.SHARE", 1e-9)

    result = CliRunner().invoke(app, ["fit", str(model_file()), "--device", "cpu?threads=1"])

    assert result.exit_code == 1
    assert "do not fit; the largest context that fits is 0" in result.stdout
