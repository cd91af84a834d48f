"""Which devices there are, and what they are; emulated."""

import logging

import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, DeviceType
from tensorplug.text import human
from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import FeatureTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_gpu_is_a_device_that_shares_the_hosts_memory(device, machine):
    assert device.name == "metal:0"
    assert device.type is DeviceType.IGPU
    assert device.info.description == "emulated Apple GPU"
    assert device.gpu.family == 8
    assert device.gpu.registry_id == 0x100000300
    assert device.info.memory_total == machine.gpus[0].working_set
    assert device.buffer_type.is_host


def test_each_gpu_is_a_device(devices, machine):
    machine.reset(gpus=2)

    first, second = devices()

    assert [first.name, second.name] == ["metal:0", "metal:1"]
    assert first.gpu.registry_id != second.gpu.registry_id


def test_log_says_what_each_gpu_is(devices, machine, caplog):
    machine.reset(gpus=2)

    with caplog.at_level(logging.INFO, "tensorplug.metal"):
        found = devices()

    assert [m for m in caplog.messages if m.startswith("metal:")] == [
        f"{d.name}: {d.gpu}, {human(d.gpu.working_set)} of memory" for d in found
    ]


def test_gpu_before_the_m1_is_left_out_with_a_warning(devices, machine, caplog):
    machine.reset(gpus=2)
    machine.gpus[0].families = frozenset({2002, 5001})

    with caplog.at_level(logging.WARNING):
        (device,) = devices()

    assert device.gpu.registry_id == 0x100000301
    assert "a GPU is left out: emulated Apple GPU: kernels need a GPU of Apple's" in caplog.text


def test_machine_on_which_nothing_runs_says_why(devices, machine):
    machine.fail_next = 1

    with pytest.raises(DeviceError, match="no GPU works: metal:0: as the test"):
        devices()


def test_gpu_that_computes_nonsense_is_no_device(devices, machine, monkeypatch):
    from Metal._encoders import Dispatch

    monkeypatch.setattr(Dispatch, "run", lambda self: None)

    with pytest.raises(DeviceError, match="computed something else than it should have"):
        devices()


def test_limits_of_the_gpu_are_what_lowerings_know(devices, machine):
    machine.gpus[0].most_items, machine.gpus[0].group_memory = 512, 16384

    (device,) = devices()

    assert (device.facts.max_group, device.facts.local_memory) == (512, 16384)
    assert device.facts.subgroup == 32


class TestFeatures(FeatureTests):
    """Versions and GPUs."""

    plugin = "tensorplug_metal.plugin"
    features = {
        "macos": "15.1",
        "pyobjc": "emulated",
        "gpu 0": "emulated Apple GPU, Apple family 8, registry 0x100000300",
    }


def test_complete_sources_of_kernels_are_told_with_whose_they_are(device):
    x = tp.input("x", (4, 64), tp.F32)

    (text,) = device.kernel_texts(tp.scale(x, 2.0))

    assert (text.name, text.suffix) == ("scale", ".metal")
    assert text.file == "tensorplug_simt/kernels/elementwise.k"
    assert "kernel void tp_scale(" in text.source


@pytest.mark.parametrize(("version", "kept"), [((15, 1), True), ((14, 6), False)])
def test_buffers_stay_resident_where_the_system_can(devices, machine, monkeypatch, version, kept):
    from tensorplug_metal import system

    monkeypatch.setattr(system, "version", lambda: version)
    (device,) = devices()

    with device, device.buffer_type.alloc(64), device.open() as stream:
        sets = stream.work.handle.residency
        resident = [each.length() for known in sets for each in known.resident]

    assert resident == ([64] if kept else [])


def test_at_least_ninety_ops_are_claimed(device):
    from tensorplug_testing.cases import node_of
    from tensorplug_testing.tiers import select

    cases = select("smoke")
    claimed = {case.op for case in cases if not device.refuses(node_of(case))}

    assert len({case.op for case in cases}) >= 122
    assert len(claimed) >= 90
