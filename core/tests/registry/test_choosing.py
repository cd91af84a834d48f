"""The order of devices, and which of them is the best."""

import pytest

from tensorplug.device import DeviceType
from tensorplug.errors import BackendNotFound, BackendUnavailable, DeviceError, OptionError
from tensorplug_testing.distributions import plugin_source

from .kinds import Kind, names, plugin_of


def test_processors_come_by_name_as_they_share_one_memory(registry):
    registry.register(plugin_of(Kind("b:0", DeviceType.CPU, free=9)), "b")
    registry.register(plugin_of(Kind("a:0", DeviceType.CPU, free=5)), "a")

    assert [device.name for device in registry.devices()] == ["a:0", "b:0"]


def test_devices_come_by_kind_then_free_memory_then_name(registry):
    registry.register(
        plugin_of(
            Kind("b:0", DeviceType.CPU, free=9),
            Kind("b:1", DeviceType.ACCEL),
            Kind("b:2", DeviceType.IGPU),
            Kind("b:3", free=5),
            Kind("b:4", DeviceType.META),
        ),
        "b",
    )
    registry.register(plugin_of(Kind("a:0", free=5), Kind("a:1", free=7)), "a")

    found = registry.devices()

    assert names(found) == ["a:1", "a:0", "b:3", "b:2", "b:1", "b:0", "b:4"]
    assert names(registry.devices(DeviceType.ACCEL, DeviceType.CPU)) == ["b:1", "b:0"]


def test_the_variable_orders_backends_before_anything_else(shelf):
    gpu = plugin_source(devices="return [NullDevice('fast:0')]")
    cpu = plugin_source(
        devices="return [NullDevice('slow:0', device_type=tensorplug.DeviceType.CPU)]"
    )
    shelf.add("fast-gpu", gpu, name="fast")
    shelf.add("slow-cpu", cpu, name="slow")
    registry = shelf.registry(TENSORPLUG_BACKENDS="slow,fast")

    assert [candidate.name for candidate in registry.backends()] == ["slow", "fast"]
    assert names(registry.devices()) == ["slow:0", "fast:0"]
    assert registry.device("best").name == "slow:0"


def test_one_piece_of_hardware_counts_once_when_nobody_chooses(registry):
    registry.register(plugin_of(Kind("ocl:0", address="0000:01:00.0", free=3)), "ocl")
    registry.register(plugin_of(Kind("cu:0", address="0000:01:00.0", free=4)), "cu")
    registry.register(plugin_of(Kind("x:0", free=2), Kind("x:1", free=1)), "x")

    assert names(registry.devices()) == ["cu:0", "ocl:0", "x:0", "x:1"]
    assert names(registry.hardware()) == ["cu:0", "x:0", "x:1"]
    assert registry.device("gpu:1").name == "x:0"


def test_the_best_is_a_gpu_then_an_integrated_one_then_the_cpu(registry):
    registry.register(
        plugin_of(
            Kind("a:0", DeviceType.CPU), Kind("a:1", DeviceType.ACCEL), Kind("a:2", DeviceType.IGPU)
        ),
        "a",
    )

    with registry.open() as best, registry.open_by_type(DeviceType.CPU) as cpu:
        assert (best.name, cpu.name) == ("a:2", "a:0")


def test_the_best_that_does_not_open_makes_way_for_the_next(registry, caplog):
    bad = Kind("a:0", error=DeviceError("a:0: driver says no"))
    registry.register(plugin_of(bad, Kind("a:1", DeviceType.CPU)), "a")

    with registry.open_best() as best:
        assert best.name == "a:1"

    assert caplog.messages == ["a:0 does not open, the next is tried: a:0: driver says no"]


def test_an_option_that_the_best_does_not_have_is_the_callers_fault(registry):
    registry.register(plugin_of(Kind("a:0"), Kind("a:1")), "a")

    with pytest.raises(OptionError, match="a:0: unknown option 'speed'"):
        registry.open_best(speed=9)


def test_when_no_device_opens_the_first_cause_is_raised(registry):
    bad = Kind("a:0", error=DeviceError("a:0: driver says no"))
    registry.register(plugin_of(bad), "a")

    with pytest.raises(BackendUnavailable) as caught:
        registry.open_best()

    assert str(caught.value) == "best: no device opens: a:0: driver says no"
    assert caught.value.__cause__ is bad.error


def test_asking_for_a_kind_that_is_not_there_names_what_is(registry):
    registry.register(plugin_of(Kind("a:0")), "a")

    with pytest.raises(BackendNotFound) as caught:
        registry.open_by_type(DeviceType.CPU)

    assert str(caught.value) == "cpu: no device of this kind; devices: a:0"


def test_asking_for_a_kind_points_at_what_was_refused(shelf):
    shelf.add("acme-gpu", "raise ValueError")
    registry = shelf.registry()

    with pytest.raises(BackendNotFound) as caught:
        registry.device("gpu")

    assert str(caught.value) == (
        "gpu: there is no device; no backend can be used; pip install 'tensorplug[cpu]' gives one "
        "that runs everywhere; tensorplug info tells about acme (failed)"
    )
