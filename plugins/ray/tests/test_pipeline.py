"""An engine over two actors: pieces of a prompt, and groups of texts, let both compute."""

import time

import pytest

from tensorplug.errors import OptionError
from tensorplug_ray import cluster as actors
from tensorplug_ray.worker import Worker

llm = pytest.importorskip("tensorplug_llm")
tiny_models = pytest.importorskip("tensorplug_llm.testing.tiny_models")

CPU = "cpu@tensorplug-cpu?threads=1"
"""Its tokens do not depend on how many are read at once, as those of products in int8 do."""
STEP = 0.08
"""Seconds that a stage sleeps in each pass: cores do not limit what two of them do together."""
TOKENS = 12


class Sleeping(Worker):
    """Sleeps in each call that computes, and notes when."""

    def __init__(self, *args):
        super().__init__(*args)
        self._slept = []

    def _do(self, number, commands, *args):
        if any(name == "run" for name, *_ in commands):
            start = time.perf_counter()
            time.sleep(STEP)
            self._slept.append((start, time.perf_counter()))
        return super()._do(number, commands, *args)

    def slept(self):
        """When it slept, on the clock of all processes of this machine."""
        return self._slept


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "llama.gguf"
    tiny_models.write("llama", path)
    return path


@pytest.fixture
def devices(cluster, monkeypatch):
    monkeypatch.setattr(actors, "Worker", Sleeping)
    return cluster(CPU, CPU)


def prompts(count, size):
    """Prompts of `size` tokens for each of two rounds, no two of which begin alike."""
    return [
        [[1, 10 + number + again * count, *range(60, 58 + size)] for number in range(count)]
        for again in range(2)
    ]


def texts(file, streams, rounds, rows, groups=1):
    """The streams of the last round of prompts; plans are made in the one before.

    The cache has `rows` for one round only: the next takes the same ones.
    """
    params = llm.SamplingParams(temperature=0, max_tokens=TOKENS)
    with (
        llm.load_model(file, streams) as model,
        llm.Engine(model, context=256, rows=rows, groups=groups) as engine,
    ):
        for wanted in rounds:
            made = engine.submit_all(wanted, params)
            for stream in made:
                stream.result()
        return made


def test_pieces_of_a_prompt_go_through_the_stages_together(devices, file, monkeypatch):
    monkeypatch.setattr("tensorplug_llm.batching.CHUNK", 32)
    streams = [device.open() for device in devices]

    (text,) = texts(file, streams, prompts(1, 190), 256)

    passes = 6  # pieces of 32
    assert 2 * passes * STEP / (text.times[0] - text.submitted) >= 1.3
    for stream in streams:
        stream.close()


def test_groups_of_running_texts_keep_two_stages_busy(devices, file):
    streams = [device.open() for device in devices]

    alone = texts(file, streams, prompts(16, 4), 1024)
    grouped = texts(file, streams, prompts(16, 4), 1024, groups=2)

    assert [text.result() for text in grouped] == [text.result() for text in alone]
    begin = max(text.times[0] for text in grouped)
    end = max(text.times[-1] for text in grouped)
    for device in devices:
        slept = device.link.call("slept")
        busy = sum(max(min(b, end) - max(a, begin), 0) for a, b in slept)
        assert busy / (end - begin) >= 0.7
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("groups", [0, 3])
def test_groups_that_the_devices_cannot_take_are_refused(devices, file, groups):
    streams = [device.open() for device in devices]
    with (
        llm.load_model(file, streams) as model,
        pytest.raises(OptionError, match=f"groups is {groups}; give 1 to 2 here"),
    ):
        llm.Engine(model, context=64, groups=groups)
    for stream in streams:
        stream.close()
