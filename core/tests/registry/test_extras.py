"""What plugins tell beyond devices: features, and functions by the names that ggml gives them."""

import pytest

from tensorplug.errors import BackendUnavailable, OptionError
from tensorplug.registry.compat import INSTEAD
from tensorplug_testing.null import NullDevice

from .kinds import Kind, plugin_of


def test_features_are_text(registry):
    plugin = plugin_of(Kind("acme:0"), extra={"tensorplug_features": lambda: {"simd": 8}})
    registry.register(plugin, "acme")
    registry.register(plugin_of(Kind("b:0")), "b")

    assert registry.features("acme") == {"simd": "8"}
    assert registry.features("b") == {}


@pytest.mark.parametrize("error", [SystemExit(2), ValueError("no")], ids=repr)
def test_an_extra_that_raises_is_an_error_with_its_cause(registry, error):
    def raises():
        raise error

    registry.register(plugin_of(Kind("a:0"), extra={"tensorplug_features": raises}), "a")

    with pytest.raises(BackendUnavailable, match="a: tensorplug_features raised ") as caught:
        registry.features("a")

    assert caught.value.__cause__ is error


def test_a_plugin_answers_for_its_own_symbols_and_ggml_names_work_by_ability(registry):
    class Threaded(type(NullDevice().backend_class.__name__, (NullDevice().backend_class,), {})):
        threads: int = 1

    device = Kind("acme:0")
    device.backend_class = Threaded
    extra = {"tensorplug_extension": lambda name: 42 if name == "acme_answer" else None}
    registry.register(plugin_of(device, extra=extra), "acme")

    with registry.open("acme") as backend:
        registry.get_proc_address("acme", "ggml_backend_set_n_threads")(backend, 3)

        assert backend.threads == 3
    assert registry.get_proc_address("acme", "acme_answer") == 42
    assert registry.get_proc_address("acme", "ggml_backend_set_abort_callback") is None
    assert registry.get_proc_address("acme", "ggml_backend_dev_get_extra_bufts")(device) == []
    assert registry.get_proc_address("acme", "nothing") is None


@pytest.mark.parametrize("reg", ["acme", "ACME", "candidate"])
def test_ggml_features_take_a_registry_entry_and_give_names_with_values(registry, reg):
    extra = {"tensorplug_features": lambda: {"SIMD": 256}}
    candidate = registry.register(plugin_of(Kind("acme:0"), extra=extra), "acme")
    get_features = registry.get_proc_address("acme", "ggml_backend_get_features")

    found = get_features(candidate if reg == "candidate" else reg)

    assert [(feature.name, feature.value) for feature in found] == [("SIMD", "256")]


@pytest.mark.parametrize("reg", ["other", None, 3], ids=repr)
def test_ggml_features_of_another_backend_are_refused(registry, reg):
    registry.register(plugin_of(Kind("acme:0")), "acme")
    get_features = registry.get_proc_address("acme", "ggml_backend_get_features")

    with pytest.raises(OptionError) as caught:
        get_features(reg)

    assert str(caught.value) == (
        f"ggml_backend_get_features: {reg!r} is not acme, whose function this is; give 'acme' or "
        "its Candidate, or call tensorplug.features(name)"
    )


def test_ggml_abort_callback_is_called_with_its_data(registry):
    class Stoppable(NullDevice().backend_class):
        abort_callback = None

    device, data, asked = Kind("acme:0"), object(), []
    device.backend_class = Stoppable
    registry.register(plugin_of(device), "acme")
    set_abort_callback = registry.get_proc_address("acme", "ggml_backend_set_abort_callback")

    with registry.open("acme") as backend:
        set_abort_callback(backend, lambda given: bool(asked.append(given)), data)
        backend.abort_callback()
        set_abort_callback(backend, None, None)

        assert backend.abort_callback is None
    assert asked == [data]


@pytest.mark.parametrize("symbol", INSTEAD)
def test_ggml_name_with_another_way_here_says_what_to_call(registry, symbol, caplog):
    registry.register(plugin_of(Kind("acme:0")), "acme")

    assert registry.get_proc_address("acme", symbol) is None

    assert caplog.messages[-1] == (
        f"get_proc_address: no function {symbol}; call {INSTEAD[symbol]}"
    )
