"""An actor that was lost is started again and taken back, with its weights from its own file."""

import os
import signal

import pytest

import tensorplug as tp
from tensorplug.errors import DeviceLost, OptionError
from tensorplug.gguf import FileSource
from tensorplug_ray.device import RayDevice

llm = pytest.importorskip("tensorplug_llm")
tiny_models = pytest.importorskip("tensorplug_llm.testing.tiny_models")

CPU = "cpu@tensorplug-cpu?threads=1"
"""Its tokens do not depend on how many are read at once, as those of products in int8 do."""
TOKENS = 40


@pytest.fixture
def devices(cluster):
    return cluster(CPU, CPU)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "llama.gguf"
    tiny_models.write("llama", path)
    return path


def generating(model):
    """An engine whose reader computes, and the tokens of a text."""
    engine = llm.Engine(model, context=128, texts=1, threaded=False, on_failure="replan")
    params = llm.SamplingParams(temperature=0, max_tokens=TOKENS)
    return engine, engine.submit(tiny_models.prompt("llama"), params)


@pytest.fixture(scope="module")
def wanted(file):
    with tp.open(CPU) as local, llm.load_model(file, [local]) as model:
        engine, tokens = generating(model)
        with engine:
            return list(tokens)


@pytest.mark.parametrize("lost", [0, 1])
def test_generate_goes_on_without_an_actor_and_with_it_when_it_is_back(
    devices, file, wanted, lost, monkeypatch
):
    streams = [device.open() for device in devices]
    with llm.load_model(file, streams) as model:
        engine, tokens = generating(model)
        with engine:
            found = [next(tokens) for _ in range(8)]
            os.kill(devices[lost].facts["pid"], signal.SIGKILL)
            found += [next(tokens) for _ in range(8)]
            alone = engine.lost
            again = devices[lost].restarted()
            stream = again.open()
            returned = engine.take_back(stream)
            # Weights do not go through this process: the actor has the same file.
            monkeypatch.setattr(FileSource, "__call__", None)
            found.append(next(tokens))
            calls = again.link.calls
            found += tokens

            assert found == wanted
            assert (alone, engine.lost) == ((f"ray:{lost}",), ())
            returned.result(0)
            assert again.link.calls - calls >= len(wanted) - 17
    again.close(force=True)


def test_restarted_device_has_the_name_of_the_lost_one(devices):
    os.kill(devices[0].facts["pid"], signal.SIGKILL)
    with pytest.raises(DeviceLost):
        devices[0].memory()

    again = devices[0].restarted()

    assert (again.name, again.facts["pid"] != devices[0].facts["pid"]) == ("ray:0", True)
    with again.open() as stream, pytest.raises(OptionError, match="was lost"):
        tp.Scheduler([stream]).take_back(stream)
    assert isinstance(again, RayDevice)
    again.close()
