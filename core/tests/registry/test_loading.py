"""Faults of plugins: each has a state and a text, and does not affect other plugins."""

import logging

import pytest

from tensorplug.errors import BackendUnavailable
from tensorplug.registry.candidate import State
from tensorplug_testing.distributions import plugin_source

REMEDY = "upgrade or uninstall acme-gpu, or set TENSORPLUG_DISABLE=acme"

FAULTS = {
    "import raises": (
        "raise ValueError('two\\nlines')",
        "failed",
        f"importing acme_gpu raised ValueError: two lines; {REMEDY}",
    ),
    "import exits": (
        "raise SystemExit(3)",
        "failed",
        f"importing acme_gpu raised SystemExit: 3; {REMEDY}",
    ),
    "import raises a group": (
        "raise BaseExceptionGroup('several', [SystemExit(3)])",
        "failed",
        f"importing acme_gpu raised BaseExceptionGroup: several (1 sub-exception); {REMEDY}",
    ),
    "library missing": (
        "raise ImportError('libacme.so.12: cannot open shared object file')",
        "failed",
        "importing acme_gpu raised ImportError: libacme.so.12: cannot open shared object file; "
        + REMEDY,
    ),
    "dependency missing": (
        "import acme_driver.api",
        "failed",
        "it needs the module acme_driver, which is not installed; install what brings it, or "
        "pip install --force-reinstall acme-gpu",
    ),
    "not a plugin": (
        "",
        "failed",
        f"api_version = None is not a (major, minor) pair such as (0, 1); {REMEDY}",
    ),
    "version is a string": (
        plugin_source(version="'0.1'"),
        "failed",
        f"api_version = '0.1' is not a (major, minor) pair such as (0, 1); {REMEDY}",
    ),
    "version too new": (
        plugin_source(version="(0, 9)"),
        "incompatible",
        "it speaks plugin interface 0.9 and this tensorplug speaks 0.1; "
        "pip install --upgrade tensorplug",
    ),
    "version of another major": (
        plugin_source(version="(1, 0)"),
        "incompatible",
        "it speaks plugin interface 1.0 and this tensorplug speaks 0.1; "
        "pip install --upgrade tensorplug",
    ),
    "no hooks": (
        "api_version = (0, 1)",
        "failed",
        f"acme_gpu has no tensorplug_devices marked with hookimpl; {REMEDY}",
    ),
    "misspelt hook": (
        plugin_source().replace("def tensorplug_score", "def tensorplug_scores"),
        "failed",
        f"it has an unknown hook tensorplug_scores; use tensorplug_score; {REMEDY}",
    ),
    "score raises": (
        plugin_source(score="raise OSError('driver')"),
        "failed",
        f"tensorplug_score raised OSError: driver; {REMEDY}",
    ),
    "score exits": (
        plugin_source(score="raise SystemExit"),
        "failed",
        f"tensorplug_score raised SystemExit; {REMEDY}",
    ),
    "score is not a number": (
        plugin_source(score="return 'high'"),
        "failed",
        f"tensorplug_score gave 'high', not an integer of 0 or more; {REMEDY}",
    ),
    "score is a truth": (
        plugin_source(score="return True"),
        "failed",
        f"tensorplug_score gave True, not an integer of 0 or more; {REMEDY}",
    ),
    "score is negative": (
        plugin_source(score="return -1"),
        "failed",
        f"tensorplug_score gave -1, not an integer of 0 or more; {REMEDY}",
    ),
    "score refuses": (
        plugin_source(score="return tensorplug.Refusal('no Acme board in this machine')"),
        "unsupported",
        "no Acme board in this machine",
    ),
    "score is zero": (
        plugin_source(score="return 0"),
        "unsupported",
        "it gives itself the score 0: it cannot run on this machine",
    ),
    "configure raises": (
        plugin_source()
        + "@tensorplug.hookimpl\ndef tensorplug_configure(): raise ValueError('bad setting')",
        "failed",
        f"tensorplug_configure raised ValueError: bad setting; {REMEDY}",
    ),
}

DEVICE_FAULTS = {
    "devices raises": (
        "raise RuntimeError('no driver')",
        "failed",
        f"tensorplug_devices raised RuntimeError: no driver; {REMEDY}",
    ),
    "devices exits": (
        "import sys; sys.exit('bye')",
        "failed",
        f"tensorplug_devices raised SystemExit: bye; {REMEDY}",
    ),
    "no devices": ("return []", "unsupported", "it finds no device on this machine"),
    "nothing": ("return None", "unsupported", "it finds no device on this machine"),
    "no sequence": (
        "return {1}",
        "failed",
        f"tensorplug_devices gave {{1}}, not a sequence of devices; {REMEDY}",
    ),
    "no device": (
        "return ['acme:0']",
        "failed",
        f"tensorplug_devices gave 'acme:0', which is not a Device; {REMEDY}",
    ),
    "name of another": (
        "return [NullDevice('other:0')]",
        "failed",
        "tensorplug_devices gave a device called 'other:0'; names are acme:0, acme:1, ..., each "
        f"once; {REMEDY}",
    ),
    "name twice": (
        "return [NullDevice('acme:0'), NullDevice('ACME:0')]",
        "failed",
        "tensorplug_devices gave a device called 'ACME:0'; names are acme:0, acme:1, ..., each "
        f"once; {REMEDY}",
    ),
    "closed device": (
        "d = NullDevice('acme:0'); d.close(); return [d]",
        "failed",
        "tensorplug_devices gave <NullDevice acme:0, closed>; it must make new devices; " + REMEDY,
    ),
    "lost device": (
        "d = NullDevice('acme:0'); d.lose(); return [d]",
        "failed",
        "a device raised DeviceLost: acme:0: the device is gone; open another; " + REMEDY,
    ),
}


def rows(table):
    return [pytest.param(*row, id=name.replace(" ", "-")) for name, row in table.items()]


@pytest.mark.parametrize(("source", "state", "reason"), rows(FAULTS))
def test_a_fault_while_loading_has_a_state_and_a_text(shelf, source, state, reason):
    shelf.add("acme-gpu", entry_points={"acme": "acme_gpu"}, modules={"acme_gpu.py": source})
    shelf.add("zeta-npu", name="zeta")

    acme, zeta = shelf.registry().load_all().candidates

    assert (acme.state.value, acme.reason) == (state, reason)
    assert zeta.state is State.AVAILABLE


@pytest.mark.parametrize(("body", "state", "reason"), rows(DEVICE_FAULTS))
def test_a_fault_in_the_devices_has_a_state_and_a_text(shelf, body, state, reason):
    shelf.add("acme-gpu", plugin_source(devices=body))
    shelf.add("zeta-npu", plugin_source(devices="return [NullDevice('zeta:0')]"), name="zeta")
    registry = shelf.registry()

    devices = registry.devices()

    acme, zeta = registry.load_all().candidates
    assert (acme.state.value, acme.reason) == (state, reason)
    assert zeta.state is State.READY
    assert [d.name for d in devices] == ["zeta:0"]


@pytest.mark.parametrize(
    ("value", "modules", "reason"),
    [
        (
            "acme_gpu.plugin",
            {},
            "its metadata is there but its module acme_gpu is not; pip uninstall acme-gpu, or "
            "install it again",
        ),
        (
            "acme_gpu.plugin",
            {"acme_gpu/__init__.py": ""},
            "its metadata is there but its module acme_gpu.plugin is not; pip uninstall acme-gpu, "
            "or install it again",
        ),
        (
            "acme_gpu.plugin",
            {"acme_gpu/__init__.py": "", "acme_gpu/plugin.py": "import acme_gpu.kernels"},
            "its own module acme_gpu.kernels is missing; pip install --force-reinstall acme-gpu",
        ),
        (
            "acme_gpu:backend",
            {"acme_gpu.py": ""},
            "acme_gpu:backend raised AttributeError: module 'acme_gpu' has no attribute "
            f"'backend'; {REMEDY}",
        ),
        (
            "acme_gpu : Backend [extra]",
            {"acme_gpu.py": "class Backend: api_version = (0, 1)"},
            f"acme_gpu : Backend [extra] is a class; it must be a module or an object; {REMEDY}",
        ),
    ],
)
def test_metadata_that_does_not_fit_the_modules_says_which(shelf, value, modules, reason):
    shelf.add("acme-gpu", entry_points={"acme": value}, modules=modules)

    (acme,) = shelf.registry().load_all().candidates

    assert (acme.state, acme.reason) == (State.FAILED, reason)


def test_an_object_in_a_module_may_be_the_plugin(shelf):
    source = plugin_source().replace("\n", "\n    ").replace("score()", "score(self)")
    source = f"class Backend:\n    {source.replace('devices()', 'devices(self)')}\nit = Backend()"
    shelf.add("acme-gpu", source, entry_points={"acme": "acme_gpu:it"})

    (acme,) = shelf.registry().load_all().candidates

    assert (acme.state, acme.score) == (State.AVAILABLE, 10)


def test_a_plugin_without_a_score_gets_one(shelf):
    shelf.add("acme-gpu", plugin_source().replace("@tensorplug.hookimpl", "", 1))

    (acme,) = shelf.registry().load_all().candidates

    assert (acme.state, acme.score) == (State.AVAILABLE, 1)


def test_a_keyboard_interrupt_is_never_swallowed(shelf):
    shelf.add("acme-gpu", "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        shelf.registry().load_all()


def test_a_keyboard_interrupt_within_a_group_is_never_swallowed(shelf):
    shelf.add("acme-gpu", "raise BaseExceptionGroup('x', [KeyboardInterrupt(), ValueError()])")

    with pytest.raises(BaseExceptionGroup):
        shelf.registry().load_all()


def test_a_broken_backend_that_is_asked_for_raises_its_real_cause(shelf):
    shelf.add("acme-gpu", plugin_source(score="raise OSError('driver')"))

    with pytest.raises(BackendUnavailable) as caught:
        shelf.registry().open("acme")

    assert str(caught.value) == (
        f"acme: acme-gpu 1.0 failed: tensorplug_score raised OSError: driver; {REMEDY}"
    )
    assert isinstance(caught.value.__cause__, OSError)


def test_asking_for_one_backend_imports_no_other(shelf):
    shelf.add("acme-gpu")
    shelf.add("zeta-npu", name="zeta", source="raise RuntimeError('imported')")
    registry = shelf.registry()

    registry.open("acme").close()

    assert [c.state for c in registry.scan().candidates] == [State.READY, State.FOUND]


def test_plugins_learn_their_name_and_the_variables(shelf):
    source = plugin_source() + (
        "seen = []\n"
        "@tensorplug.hookimpl\n"
        "def tensorplug_configure(name, environ): seen.append((name, environ['ACME']))\n"
        "@tensorplug.hookimpl\n"
        "def tensorplug_extension(name): return seen\n"
    )
    shelf.add("acme-gpu", source)

    seen = shelf.registry(ACME="fast").get_proc_address("acme", "seen")

    assert seen == [("acme", "fast")]


@pytest.mark.parametrize(
    ("source", "level"),
    [("raise ValueError", "WARNING"), (plugin_source(score="return 0"), "INFO")],
)
def test_the_log_is_loud_only_where_somebody_has_to_repair_something(shelf, caplog, source, level):
    shelf.add("acme-gpu", source)

    with caplog.at_level(logging.INFO, "tensorplug"):
        shelf.registry().load_all()

    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith("acme (acme-gpu 1.0) ")
