"""A device dies while a text is written: the text goes on, and is the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug.errors import RunFailed
from tensorplug_llm import Engine, SamplingParams, load_model
from tensorplug_llm.arch import architecture, architecture_names

from .failing import Dying

Write = Callable[..., Path]
Open = Callable[..., Backend]
PROMPT = list(range(40, 70))


def text(streams: list[Backend], path: Path, on_failure: str) -> list[int]:
    with (
        load_model(path, streams, layers=[1, 1, 0]) as model,
        Engine(
            model, context=64, texts=1, kv=tp.F32, on_failure=on_failure, threaded=False
        ) as engine,
    ):
        return engine.submit(PROMPT, SamplingParams(temperature=0, max_tokens=12)).result()


@pytest.mark.parametrize("name", [n for n in architecture_names() if architecture(n).generates])
@pytest.mark.parametrize("waits", [20, 70])
def test_text_is_the_same_though_a_device_dies(
    name: str, waits: int, model_file: Write, walled: Open, cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = model_file(name)
    expected = text([walled("walled:0"), walled("walled:1"), cpu], path, "raise")
    streams = [walled("walled:2"), walled("walled:3"), cpu]
    dying = Dying(monkeypatch, streams[1], waits)

    found = text(streams, path, "replan")

    assert dying.left < 0
    assert found == expected


def test_both_devices_may_die_one_after_the_other(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_file()
    expected = text([walled("walled:0"), walled("walled:1"), cpu], path, "raise")
    streams = [walled("walled:2"), walled("walled:3"), cpu]
    dying = [Dying(monkeypatch, s, n) for s, n in zip(streams, (30, 40), strict=False)]

    found = text(streams, path, "replan")

    assert all(d.left < 0 for d in dying)
    assert found == expected


def test_text_ends_with_an_error_where_nobody_asked_to_go_on(
    model_file: Write, walled: Open, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [walled("walled:0"), walled("walled:1"), cpu]
    Dying(monkeypatch, streams[1], 20)

    with pytest.raises(RunFailed, match="walled:1: gone"):
        text(streams, model_file(), "raise")
