"""The library: its levels, and what a damaged program or installation gives."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_native import library as module
from tensorplug_native import plugin
from tensorplug_native.headers import interface
from tensorplug_native.library import VARIABLE, Library, library, location
from tensorplug_native.program import NODE


def test_baseline_runs_everywhere_and_the_best_level_is_used(device):
    levels = list(library().levels)

    with device.open() as backend:
        assert levels[0] == "baseline"
        assert backend.level.name == levels[-1]


def test_an_option_comes_before_the_variable_that_names_a_level(device, monkeypatch):
    monkeypatch.setenv(VARIABLE, "baseline")
    best = list(library().levels)[-1]

    with device.open() as plain, device.open(level=best) as named:
        assert (plain.level.name, named.level.name) == ("baseline", best)


def test_a_level_that_is_not_there_is_refused_with_those_that_are(device, monkeypatch):
    monkeypatch.setenv(VARIABLE, "sse9")

    with pytest.raises(tp.OptionError) as caught:
        device.open()

    assert str(caught.value) == (
        f"tensorplug-native: {VARIABLE}=sse9: this processor and this build have "
        f"{', '.join(library().levels)}; choose one of them, or auto"
    )


def test_without_the_library_the_plugin_gives_itself_no_score(monkeypatch):
    monkeypatch.setattr(module, "location", lambda: None)

    score = plugin.tensorplug_score()

    assert score == tp.Refusal("built without a compiler")


def test_a_library_of_another_build_is_refused(monkeypatch):
    path = location()
    monkeypatch.setattr(module, "interface", lambda: 0)

    with pytest.raises(tp.BackendUnavailable) as caught:
        Library(path)

    assert str(caught.value) == (
        f"tensorplug-native: {path} is of another build: interface {interface()} with nodes of "
        f"{NODE.itemsize} bytes, wanted 0 with {NODE.itemsize}; install the distribution again"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="threads are pinned on Linux only")
def test_threads_stay_on_the_processors_that_they_are_given(device):
    chosen = max(os.sched_getaffinity(0))

    with device.open(threads=2, affinity=str(chosen)) as backend:
        found = where_threads_are(backend)

    assert found == {chosen}
    assert chosen in os.sched_getaffinity(0)


def where_threads_are(backend):
    """Processors that the threads of the pool, which start with a run, may use."""
    before = set(Path("/proc/self/task").iterdir())
    x = tp.input("x", (4, 8), tp.F32)
    with tp.Scheduler([backend]) as scheduler, scheduler.schedule(x + x) as run:
        run.run({x: np.zeros((4, 8), np.float32)})
        started = set(Path("/proc/self/task").iterdir()) - before
        return {cpu for task in started for cpu in os.sched_getaffinity(int(task.name))}


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0,x", "2-1", "0-9999999999", "9" * 5000])
def test_an_affinity_that_names_no_processors_is_refused(device, text):
    with pytest.raises(tp.OptionError, match="is not a processor; give numbers such as 0,2 or 4-7"):
        device.open(affinity=text)


@pytest.mark.parametrize("count", [4097, 100_000])
def test_more_threads_than_the_library_takes_are_refused(device, count):
    with pytest.raises(tp.OptionError, match=f"threads={count}, and at most 4096 can be used"):
        device.open(threads=count)


def test_a_processor_that_is_not_there_is_refused(device):
    with pytest.raises(tp.OptionError, match="Pool: processor 4000 is none"):
        device.open(affinity="4000")
