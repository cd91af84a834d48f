"""Hooks: marked functions, checked signatures, one plugin at a time."""

import inspect
import types

import pluggy
import pytest

import tensorplug as tp
from tensorplug.registry import hooks
from tensorplug.registry.hooks import Plugin

SPECS = [name for name in vars(hooks) if name.startswith("tensorplug_")]


class Good:
    api_version = (0, 1)

    @tp.hookimpl
    def tensorplug_devices(self):
        return ["a device"]

    @tp.hookimpl
    def tensorplug_extension(self):
        return "whatever was asked for"


@pytest.mark.parametrize("name", SPECS)
def test_every_hook_says_since_when_it_exists(name):
    assert "Since 0.1." in inspect.getdoc(getattr(hooks, name))


def test_a_plugin_answers_for_the_hooks_it_has():
    plugin = Plugin("good", Good())

    assert plugin.call("tensorplug_devices") == ["a device"]
    assert plugin.call("tensorplug_score") is None


def test_a_hook_may_leave_out_arguments():
    assert Plugin("good", Good()).call("tensorplug_extension", name="x") == "whatever was asked for"


def test_an_argument_that_the_hook_does_not_have_is_refused():
    class Greedy:
        @tp.hookimpl
        def tensorplug_score(self, machine):
            return 1

    with pytest.raises(pluggy.PluginValidationError, match="machine"):
        Plugin("greedy", Greedy())


def test_a_misspelt_hook_is_found_with_the_one_that_was_meant():
    class Misspelt:
        @tp.hookimpl
        def tensorplug_device(self):
            return []

    assert Plugin("misspelt", Misspelt()).unknown_hook == (
        "tensorplug_device",
        "tensorplug_devices",
    )


def test_a_hook_of_a_later_version_may_be_marked_optional():
    class Ahead:
        @tp.hookimpl(optionalhook=True)
        def tensorplug_frobnicate(self):
            return []

    assert Plugin("ahead", Ahead()).unknown_hook is None


def test_one_plugin_that_raises_takes_no_other_along():
    class Bad(Good):
        @tp.hookimpl
        def tensorplug_devices(self):
            raise ValueError("no")

    good, bad = Plugin("good", Good()), Plugin("bad", Bad())

    with pytest.raises(ValueError, match="no"):
        bad.call("tensorplug_devices")
    assert good.call("tensorplug_devices") == ["a device"]


def test_the_same_object_may_be_two_plugins():
    module = types.ModuleType("both")
    module.tensorplug_score = tp.hookimpl(lambda: 3)

    assert [Plugin(name, module).call("tensorplug_score") for name in ("a", "b")] == [3, 3]


def test_repr_names_the_plugin_and_its_hooks():
    assert repr(Plugin("good", Good())) == (
        "<Plugin Good, tensorplug_devices, tensorplug_extension>"
    )
