"""Timed choices: made once, kept on disk, and never trusted blindly."""

import math
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, OptionError
from tensorplug.system import cache
from tensorplug_opencl import tuning
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.facts import LIMITS, LOCAL_MEMORY, MAX_GROUP, TUNE, WIDE, facts_of
from tensorplug_opencl.kernels.matmul import operands_of
from tensorplug_opencl.kernels.variants import class_of, program_of, variants
from tensorplug_simt import tuning as shared

ROWS, LENGTH = 96, 512


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A cache folder of the test's own, and no forced style."""
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path))
    monkeypatch.delenv(WIDE, raising=False)
    monkeypatch.delenv(TUNE, raising=False)
    return tmp_path / "opencl"


def graph(tokens=1):
    x = tp.input("x", (tokens, LENGTH), tp.F32)
    w = tp.input("w", (ROWS, LENGTH), tp.F16)
    return w, x, tp.mul_mat(w, x)


def compute(device, tokens=1) -> None:
    """A product of ones, which must be right."""
    w, x, y = graph(tokens)
    given = {w: np.ones((ROWS, LENGTH), np.float16), x: np.ones((tokens, LENGTH), np.float32)}
    with device.open() as stream, tp.Scheduler([stream]).schedule(y) as run:
        assert (run.run(given)[y] == LENGTH).all()


def kind_of(device, tokens=1):
    return class_of(operands_of(graph(tokens)[2]), device.facts)


def timed(monkeypatch, **seconds):
    """Let the variants take so long; others for ever."""

    def times(runs):
        return {name: seconds.get(name, math.inf) for name in runs}

    monkeypatch.setattr(shared, "timed", times)


@pytest.mark.parametrize("tokens", [1, 40])
def test_choice_is_made_once_and_used_by_later_processes(driver, monkeypatch, folder, tokens):
    monkeypatch.setenv(TUNE, "1")
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device, tokens)
        chosen = dict(device.facts.choices)
        wanted = [kind_of(device, tokens)]
        compute(device, tokens)
    monkeypatch.delenv(TUNE)
    with OpenCLDevice("opencl:0", driver) as later:
        compute(later, tokens)
        kept = dict(later.facts.choices)

    assert list(chosen) == wanted
    assert kept == chosen
    assert len(list(folder.glob("choices-*.json"))) == 1


def test_nothing_is_timed_or_written_unless_asked(driver, folder):
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert not device.facts.choices
    assert not list(folder.glob("choices-*"))


def test_fastest_variant_is_chosen_by_a_margin(driver, monkeypatch):
    monkeypatch.setenv(TUNE, "1")
    timed(monkeypatch, wide=1.0, group=0.5)
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert device.facts.choices == {kind_of(device): "group"}


def test_choice_of_the_facts_stays_where_another_is_hardly_faster(driver, monkeypatch):
    monkeypatch.setenv(TUNE, "1")
    timed(monkeypatch, wide=1.0, group=0.99)
    with OpenCLDevice("opencl:0", driver) as device:
        valid = variants(operands_of(graph()[2]), device.facts)
        compute(device)
        assert device.facts.choices == {kind_of(device): valid[0]}


def test_variant_that_the_driver_cannot_compile_is_not_chosen(driver, monkeypatch):
    monkeypatch.setenv(TUNE, "1")
    bind = tuning.bind

    def broken(device, parts):
        if parts[0].launch.kernel.name == "matvec":
            raise DeviceError("does not compile")
        return bind(device, parts)

    monkeypatch.setattr(tuning, "bind", broken)
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert device.facts.choices[kind_of(device)] in ("group", "subgroup")


@pytest.mark.parametrize(("name", "value"), [("BUDGET", 0.0), ("LEAST", 2**40), ("MOST_BYTES", 1)])
def test_facts_choose_where_timing_would_take_too_much(driver, monkeypatch, name, value):
    monkeypatch.setenv(TUNE, "1")
    monkeypatch.setattr(shared, name, value)
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert not device.facts.choices


def test_results_have_room_for_the_scratch_memory_of_every_variant(driver, monkeypatch):
    monkeypatch.setenv(TUNE, "1")
    with OpenCLDevice("opencl:0", driver) as device:
        device.facts = replace(device.facts, int8_activations=True)
        y = tp.mul_mat(tp.input("w", (8, 64), tp.Q8_0), tp.input("x", (3, 64), tp.F16))
        these = operands_of(y)
        needs = [program_of(v, these, device.facts).scratch for v in variants(these, device.facts)]

        assert device.scratch(y) == max(needs) > 0


def test_large_products_are_timed_on_some_of_their_rows(driver):
    y = tp.mul_mat(tp.input("w", (100_000, 1024), tp.Q8_0), tp.input("x", (512, 1024), tp.F32))

    these = tuning.ProductContest(y, operands_of(y), facts_of(driver)).cut(2**30).these

    assert these.w.ne == (1024, 792, 1, 1)
    assert these.y.ne == (792, 512, 1, 1)


def test_experts_are_timed_in_memory_for_some_of_their_rows(driver):
    w, x = tp.input("w", (128, 4096, 2048), tp.F16), tp.input("x", (64, 1, 2048), tp.F32)
    y = tp.mul_mat_id(w, x, tp.input("ids", (64, 8), tp.I32))

    these = tuning.ProductContest(y, operands_of(y), facts_of(driver)).cut(2**20).these

    assert these.w.nbytes == 128 * 280 * 2048 * 2


class Broken:
    """A queue after one of whose kernels failed."""

    def finish(self):
        raise cl.RuntimeError("clFinish failed: OUT_OF_RESOURCES")


def test_device_that_fails_leaves_the_choice_to_the_facts(driver, monkeypatch, caplog):
    monkeypatch.setenv(TUNE, "1")
    monkeypatch.setattr(tuning, "queue_all", lambda _queue, _launches: None)
    with OpenCLDevice("opencl:0", driver) as device:
        device.transfers.finish()
        monkeypatch.setattr(device, "queue", Broken)
        device.tuner.tune(graph()[2])

        assert not device.facts.choices
    assert f"wide is not taken for {kind_of(device)}: opencl:0: launch: clFinish" in caplog.text


def test_remembered_variant_that_does_not_exist_is_ignored(driver):
    with OpenCLDevice("opencl:0", driver) as device:
        tuning.choice_file(driver).add({kind_of(device): "magic"})
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)


def test_choices_hold_for_the_process_where_nothing_can_be_written(driver, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError("no space left on device")

    monkeypatch.setenv(TUNE, "1")
    monkeypatch.setattr(cache.tempfile, "mkstemp", full)
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert kind_of(device) in device.facts.choices


def test_forced_style_neither_reads_nor_makes_choices(driver, monkeypatch):
    monkeypatch.setenv(TUNE, "1")
    monkeypatch.setenv(WIDE, "0")
    tuning.choice_file(driver).add({"a": "wide"})
    with OpenCLDevice("opencl:0", driver) as device:
        compute(device)
        assert not device.facts.choices


def test_changed_kernels_are_timed_anew(driver, monkeypatch):
    tuning.choice_file(driver).add({"a": "wide"})
    monkeypatch.setattr(tuning, "kernels_id", lambda: "another")

    assert tuning.choice_file(driver).read() == {}


def test_groups_have_the_limits_of_gpus_unless_the_devices_own_are_wanted(driver, monkeypatch):
    capped = facts_of(driver)
    monkeypatch.setenv(LIMITS, "device")
    lifted = facts_of(driver)

    assert capped.max_group <= MAX_GROUP
    assert capped.local_memory <= LOCAL_MEMORY
    assert lifted.max_group == driver.max_work_group_size
    assert lifted.local_memory == driver.local_mem_size


@pytest.mark.parametrize("name", [LIMITS, TUNE, "TENSORPLUG_OPENCL_ACTIVATIONS"])
def test_setting_that_means_nothing_is_refused_with_what_it_may_be(driver, monkeypatch, name):
    monkeypatch.setenv(name, "fast")

    with pytest.raises(OptionError, match=f"{name}='fast': choose from "):
        OpenCLDevice("opencl:0", driver)
