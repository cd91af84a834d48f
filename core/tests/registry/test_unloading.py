"""Loading, unloading and looking again once something was loaded."""

import sys

import pytest

import tensorplug as tp
from tensorplug.errors import BackendNotFound, BackendUnavailable, LiveChildren
from tensorplug.registry import Registry
from tensorplug.registry.candidate import State
from tensorplug_testing.distributions import plugin_source, write_distribution

from .kinds import Kind, plugin_of


def test_a_variant_that_fails_on_request_leaves_the_best_where_it_is(shelf):
    shelf.offer("acme-plain", 5, devices="raise RuntimeError('no driver')")
    shelf.offer("acme-simd", 20)
    registry = shelf.registry()

    with pytest.raises(BackendUnavailable, match=r"acme: acme-plain 1\.0 failed: "):
        registry.open("acme@acme-plain")

    assert registry.load_all().notes == ()
    assert [c.project for c in registry.backends()] == ["acme-simd"]


def test_load_returns_the_candidate_that_stands_for_the_name(shelf):
    shelf.offer("acme-plain", 5)
    shelf.offer("acme-simd", 20)

    assert shelf.registry().load("ACME").distribution == "acme-simd 1.0"


def test_unload_refuses_while_something_is_open_and_changes_nothing(shelf):
    shelf.add("acme-gpu")
    registry = shelf.registry()
    with registry.open("acme"):
        with pytest.raises(LiveChildren) as caught:
            registry.unload("acme")

        assert registry.device("acme").closed is False
    assert str(caught.value) == (
        "unload acme: 1 object is open on its devices: <NullBackend acme:0>; close what was made "
        "from them first"
    )


def test_unload_refuses_while_a_buffer_is_open(shelf):
    shelf.add("acme-gpu")
    registry = shelf.registry()
    buffer = registry.device("acme").buffer_type.alloc(64)

    with buffer, pytest.raises(LiveChildren, match="NullBuffer"):
        registry.unload("acme")


def test_an_unloaded_backend_is_gone_until_it_is_loaded_again(shelf):
    shelf.add("acme-gpu")
    registry = shelf.registry()
    old = registry.device("acme")

    registry.unload("acme")

    (acme,) = registry.load_all().candidates
    assert old.closed
    assert registry.devices() == ()
    assert acme.state is State.DISABLED
    assert acme.reason == "the program unloaded it; load('acme') brings it back"
    assert "acme_gpu" in sys.modules
    assert registry.load("acme").state is State.AVAILABLE
    assert registry.device("acme") is not old


def test_load_asks_a_backend_again_that_was_not_supported(registry):
    answers = iter([tp.Refusal("no driver"), 1])
    plugin = plugin_of(Kind("acme:0"))
    plugin.tensorplug_score = tp.hookimpl(lambda: next(answers))
    registry.register(plugin, "acme")
    (before,) = registry.load_all().candidates
    assert before.state is State.UNSUPPORTED

    found = registry.load("acme")

    assert (found.state, found.reason) == (State.AVAILABLE, "")


def test_load_tries_a_backend_again_that_failed(registry):
    answers = iter([RuntimeError("wrong setting"), 1])

    def score():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    plugin = plugin_of(Kind("acme:0"))
    plugin.tensorplug_score = tp.hookimpl(score)
    registry.register(plugin, "acme")
    (before,) = registry.load_all().candidates
    assert before.state is State.FAILED

    found = registry.load("acme")

    assert (found.state, found.reason) == (State.AVAILABLE, "")
    assert [device.name for device in registry.devices()] == ["acme:0"]


def test_unloading_one_variant_lets_the_next_stand_for_the_name(shelf):
    shelf.offer("acme-plain", 5)
    shelf.offer("acme-simd", 20)
    registry = shelf.registry()
    registry.load_all()

    registry.unload("acme@acme-simd")

    assert [c.project for c in registry.backends()] == ["acme-plain"]


def test_unload_does_not_open_a_way_around_the_variables(shelf):
    shelf.add("acme-gpu")
    registry = shelf.registry(TENSORPLUG_DISABLE="acme")
    registry.unload("acme")

    with pytest.raises(BackendUnavailable, match="TENSORPLUG_DISABLE names acme"):
        registry.load("acme")


def test_a_device_that_was_registered_alone_is_gone_when_unloaded(registry):
    registry.register_device(Kind("acme:0"))

    registry.unload("acme")

    assert registry.load_all().candidates == ()


def test_a_device_that_does_not_close_does_not_stop_an_unload(registry, caplog):
    class Stuck(Kind):
        def _close(self):
            raise OSError("stuck")

    registry.register(plugin_of(Stuck("acme:0")), "acme")
    registry.devices()

    registry.unload("acme")

    assert registry.devices() == ()
    assert caplog.messages == ["<Stuck acme:0, closed>: close raised"]


def test_unload_tells_the_plugin_after_its_devices_are_closed(registry):
    told = []
    device = Kind("acme:0")
    extra = {"tensorplug_unload": lambda: told.append(device.closed)}
    registry.register(plugin_of(device, extra=extra), "acme")
    registry.devices()

    registry.unload("acme")

    assert told == [True]


def test_refresh_finds_what_was_installed_and_keeps_what_is_open(shelf):
    shelf.add("acme-gpu")
    registry = shelf.registry()
    with registry.open("acme") as backend:
        shelf.add("zeta-npu", plugin_source(devices="return [NullDevice('zeta:0')]"), name="zeta")

        report = registry.refresh()

        assert [(c.name, c.state) for c in report.candidates] == [
            ("acme", State.READY),
            ("zeta", State.AVAILABLE),
        ]
        assert registry.device("acme") is backend.device


def test_refresh_forgets_what_was_uninstalled(shelf):
    info = write_distribution(
        shelf.folder,
        "acme-gpu",
        entry_points={"acme": "acme_gpu"},
        modules={"acme_gpu.py": plugin_source()},
    )
    registry = shelf.registry()
    device = registry.device("acme")
    (info / "entry_points.txt").unlink()

    report = registry.refresh()

    assert (report.candidates, registry.devices(), device.closed) == ((), (), True)
    with pytest.raises(BackendNotFound):
        registry.open("acme")


def test_refresh_tries_again_what_failed(shelf):
    shelf.add("acme-gpu", "import acme_driver\n" + plugin_source())
    registry = shelf.registry()
    registry.load_all()
    (shelf.folder / "acme_driver.py").write_text("")

    (acme,) = registry.refresh().candidates

    assert acme.state is State.AVAILABLE


def test_refresh_reads_the_variables_again(shelf):
    shelf.add("acme-gpu")
    environ = {}
    registry = Registry(path=[str(shelf.folder)], environ=environ)
    device = registry.device("acme")
    environ["TENSORPLUG_DISABLE"] = "acme"

    (acme,) = registry.refresh().candidates

    assert (acme.state, device.closed) == (State.DISABLED, True)


def test_an_upgrade_of_what_is_loaded_waits_for_the_next_start(shelf):
    shelf.add("acme-gpu", version="1.0")
    registry = shelf.registry()
    registry.load_all()
    (shelf.folder / "acme_gpu-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-gpu\nVersion: 2.0\n"
    )

    report = registry.refresh()

    assert report.candidates[0].distribution == "acme-gpu 1.0"
    assert report.notes == (
        "acme: acme-gpu 2.0 was installed over acme-gpu 1.0, which is loaded; start the program "
        "again",
    )
