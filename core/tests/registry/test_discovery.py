"""Discovery from metadata: candidates that are installed, allowed and compatible. No imports."""

import sys

import pytest

from tensorplug.registry import Registry
from tensorplug.registry.candidate import State
from tensorplug.registry.variables import Variables
from tensorplug_testing.distributions import write_distribution


def only(registry):
    (found,) = registry.scan().candidates
    return found


def test_a_scan_finds_every_distribution_and_imports_none(shelf):
    shelf.add("acme-gpu", name="acme", version="1.2")
    shelf.add("zeta-npu", name="zeta")

    found = shelf.registry().scan().candidates

    assert [(c.name, c.distribution, c.value, c.state) for c in found] == [
        ("acme", "acme-gpu 1.2", "acme_gpu", State.FOUND),
        ("zeta", "zeta-npu 1.0", "zeta_npu", State.FOUND),
    ]
    assert "acme_gpu" not in sys.modules


def test_a_registry_reads_nothing_before_its_first_use(shelf):
    registry = shelf.registry()

    shelf.add("acme-gpu")

    assert only(registry).name == "acme"


def test_a_registry_scans_once_until_it_is_refreshed(shelf):
    registry = shelf.registry()
    registry.scan()
    shelf.add("acme-gpu")

    before = registry.scan().candidates
    registry.refresh()

    assert before == ()
    assert only(registry).name == "acme"


@pytest.mark.parametrize(
    ("requires", "state", "reason"),
    [
        ((), State.FOUND, ""),
        (("numpy>=99",), State.FOUND, ""),
        (("tensorplug",), State.FOUND, ""),
        (("Tensorplug>=0.2,<0.3",), State.FOUND, ""),
        (("tensorplug>=99; extra == 'test'",), State.FOUND, ""),
        (("tensorplug>=99; python_version < '3'",), State.FOUND, ""),
        (
            ("tensorplug>=99",),
            State.INCOMPATIBLE,
            "it needs tensorplug>=99 and this is tensorplug 0.2.0; "
            "pip install --upgrade tensorplug acme-gpu",
        ),
        (
            ("numpy", "tensorplug (<0.2) ; python_version > '3'"),
            State.INCOMPATIBLE,
            "it needs tensorplug<0.2 and this is tensorplug 0.2.0; "
            "pip install --upgrade tensorplug acme-gpu",
        ),
        (
            ("tensorplug >= >= 1",),
            State.FAILED,
            "its requirement 'tensorplug >= >= 1' cannot be read; its author must correct it",
        ),
    ],
)
def test_the_declared_requirement_decides_before_any_import(shelf, requires, state, reason):
    shelf.add("acme-gpu", requires=requires, source="raise RuntimeError('imported')")

    found = only(shelf.registry())

    assert (found.state, found.reason) == (state, reason)
    assert "acme_gpu" not in sys.modules


@pytest.mark.parametrize("name", ["my gpu", "gpu", "best", "pci", "3d", "a:b"])
def test_names_that_cannot_stand_in_a_device_string_fail(shelf, name):
    shelf.add("acme-gpu", name=name)

    found = only(shelf.registry())

    assert found.state is State.FAILED
    assert found.reason == (
        f"the name {name!r} cannot stand in a device string; its author must rename it"
    )


def test_an_entry_point_that_names_no_module_fails(shelf):
    shelf.add("acme-gpu", entry_points={"acme": "acme gpu!"})

    found = only(shelf.registry())

    assert found.state is State.FAILED
    assert found.reason == (
        "its entry point 'acme gpu!' names no module; its author must correct it"
    )


def test_one_malformed_file_on_the_path_is_a_record_and_hides_nobody(shelf):
    write_distribution(shelf.folder, "a-wreck", entry_points="[console_scripts]\nno equals sign")
    shelf.add("acme-gpu")

    acme, wreck = shelf.registry().scan().candidates

    assert acme.state is State.FOUND
    assert (wreck.name, wreck.distribution, wreck.state) == ("", "a-wreck 1.0", State.FAILED)
    assert wreck.reason.startswith(f"its metadata in {shelf.folder} cannot be read, TypeError: ")
    assert wreck.reason.endswith("; reinstall or remove it")


def test_a_distribution_without_a_name_is_a_record_and_hides_nobody(shelf):
    info = write_distribution(shelf.folder, "a-wreck", entry_points={"wreck": "wreck"})
    (info / "METADATA").unlink()
    shelf.add("acme-gpu")

    acme, wreck = shelf.registry().scan().candidates

    assert acme.state is State.FOUND
    assert (wreck.distribution, wreck.state) == ("a_wreck-1.0.dist-info", State.FAILED)


def test_bytes_that_are_no_text_are_a_record_and_hide_nobody(shelf):
    info = write_distribution(shelf.folder, "a-wreck", entry_points={"wreck": "wreck"})
    (info / "entry_points.txt").write_bytes(b"\xff\xfe\x00")
    shelf.add("acme-gpu")

    acme, wreck = shelf.registry().scan().candidates

    assert (acme.state, wreck.state) == (State.FOUND, State.FAILED)


def test_of_a_distribution_twice_on_the_path_the_first_counts(shelf, tmp_path):
    shelf.add("acme-gpu", version="2.0")
    old = tmp_path / "old"
    write_distribution(old, "acme-gpu", version="1.0", entry_points={"acme": "acme_gpu"})
    registry = Registry(path=[str(shelf.folder), str(old)], environ={})

    assert only(registry).distribution == "acme-gpu 2.0"


def test_what_only_the_hidden_version_of_a_distribution_offers_is_not_there(shelf, tmp_path):
    shelf.add("acme-gpu", version="2.0")
    old = tmp_path / "old"
    write_distribution(old, "acme-gpu", version="1.0", entry_points={"acme-old": "acme_gpu"})
    registry = Registry(path=[str(shelf.folder), str(old)], environ={})

    assert only(registry).name == "acme"


def test_a_pre_release_of_tensorplug_counts_as_its_version(shelf, monkeypatch):
    monkeypatch.setattr("tensorplug.registry.discovery._our_version", lambda: "0.2.0rc1")
    shelf.add("acme-gpu", requires=["tensorplug>=0.1"])

    assert only(shelf.registry()).state is State.FOUND


# --- variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"acme": "found", "zeta": "found"}),
        ({"TENSORPLUG_BACKENDS": ""}, {"acme": "found", "zeta": "found"}),
        ({"TENSORPLUG_BACKENDS": " Zeta , "}, {"acme": "disabled", "zeta": "found"}),
        ({"TENSORPLUG_BACKENDS": "zeta@zeta.NPU"}, {"acme": "disabled", "zeta": "found"}),
        ({"TENSORPLUG_BACKENDS": "zeta@other"}, {"acme": "disabled", "zeta": "disabled"}),
        ({"TENSORPLUG_DISABLE": "acme"}, {"acme": "disabled", "zeta": "found"}),
        ({"TENSORPLUG_DISABLE": "acme@acme-gpu,zeta@x"}, {"acme": "disabled", "zeta": "found"}),
        (
            {"TENSORPLUG_BACKENDS": "acme,zeta", "TENSORPLUG_DISABLE": "acme"},
            {"acme": "disabled", "zeta": "found"},
        ),
    ],
)
def test_variables_choose_backends_before_any_import(shelf, variables, expected):
    shelf.add("acme-gpu", name="acme")
    shelf.add("zeta-npu", name="zeta")

    found = shelf.registry(**variables).scan().candidates

    assert {c.name: c.state.value for c in found} == expected


def test_a_backend_left_out_says_which_variable_did_it(shelf):
    shelf.add("acme-gpu")

    left_out = only(shelf.registry(TENSORPLUG_BACKENDS="cpu"))
    blocked = only(shelf.registry(TENSORPLUG_DISABLE="Acme@acme_gpu"))

    assert left_out.reason == ("TENSORPLUG_BACKENDS=cpu leaves it out; add acme to use the backend")
    assert blocked.reason == (
        "TENSORPLUG_DISABLE names acme@acme_gpu; take it out to use the backend"
    )


def test_names_in_the_variables_that_mean_nothing_are_reported_not_raised(shelf):
    shelf.add("acme-gpu")

    report = shelf.registry(TENSORPLUG_BACKENDS="acmee,acme", TENSORPLUG_DISABLE="xyz").load_all()

    assert report.complaints == (
        "TENSORPLUG_BACKENDS names 'acmee', which is not installed; did you mean 'acme'?",
        "TENSORPLUG_DISABLE names 'xyz', which is not installed; installed: acme, acme@acme-gpu",
    )
    assert not report.healthy


def test_variables_are_shown_as_this_process_sees_them():
    seen = Variables.read({"TENSORPLUG_BACKENDS": "cpu", "PATH": "x"}).seen

    assert seen == {"TENSORPLUG_BACKENDS": "cpu", "TENSORPLUG_DISABLE": None}
