"""Every fault at once, in processes of their own: each has its row, and what works still works."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tensorplug_testing.distributions import plugin_source, write_distribution

GOOD = plugin_source(devices="return [NullDevice('good:0')]")


def remedy(name: str) -> str:
    return f"upgrade or uninstall {name}-plugin, or set TENSORPLUG_DISABLE={name}"


FAULTS: Mapping[str, tuple[str, str, str]] = {
    "import-error": (
        "raise ImportError('libacme.so.12: no such file')",
        "failed",
        "importing import_error_plugin raised ImportError: libacme.so.12: no such file; "
        + remedy("import-error"),
    ),
    "missing-dependency": (
        "import acme_driver",
        "failed",
        "it needs the module acme_driver, which is not installed; install what brings it, or pip "
        "install --force-reinstall missing-dependency-plugin",
    ),
    "wrong-object": (
        "",
        "failed",
        "api_version = None is not a (major, minor) pair such as (0, 1); " + remedy("wrong-object"),
    ),
    "wrong-version": (
        plugin_source(version="(3, 0)"),
        "incompatible",
        "it speaks plugin interface 3.0 and this tensorplug speaks 0.1; "
        "pip install --upgrade tensorplug",
    ),
    "raises-in-score": (
        plugin_source(score="raise OSError('driver')"),
        "failed",
        "tensorplug_score raised OSError: driver; " + remedy("raises-in-score"),
    ),
    "raises-in-configure": (
        plugin_source()
        + "@tensorplug.hookimpl\ndef tensorplug_configure(): raise ValueError('setting')",
        "failed",
        "tensorplug_configure raised ValueError: setting; " + remedy("raises-in-configure"),
    ),
    "raises-in-devices": (
        plugin_source(devices="raise RuntimeError('no driver')"),
        "failed",
        "tensorplug_devices raised RuntimeError: no driver; " + remedy("raises-in-devices"),
    ),
    "exits": (
        "import sys; sys.exit(4)",
        "failed",
        "importing exits_plugin raised SystemExit: 4; " + remedy("exits"),
    ),
    "exits-in-devices": (
        plugin_source(devices="import sys; sys.exit()"),
        "failed",
        "tensorplug_devices raised SystemExit; " + remedy("exits-in-devices"),
    ),
    "cannot-run": (
        plugin_source(score="return tensorplug.Refusal('no such board in this machine')"),
        "unsupported",
        "no such board in this machine",
    ),
    "no-devices": (
        plugin_source(devices="return []"),
        "unsupported",
        "it finds no device on this machine",
    ),
    "switched-off": (
        "raise RuntimeError('imported')",
        "disabled",
        "TENSORPLUG_DISABLE names switched-off; take it out to use the backend",
    ),
}

FATAL: Mapping[str, tuple[str, str]] = {
    "crash": (
        plugin_source(devices="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        "it ends its process with SIGSEGV while it listed its devices; " + remedy("crash"),
    ),
    "hang": (
        plugin_source(score="import threading; threading.Event().wait()"),
        "it hangs: 8 s were up while it was imported and asked for its score; " + remedy("hang"),
    ),
}

NAMES = {*FAULTS, *FATAL, "good", "gone", "future", "twice", ""}


def add(site: Path, name: str, source: str) -> None:
    module = f"{name.replace('-', '_')}_plugin"
    write_distribution(
        site, f"{name}-plugin", entry_points={name: module}, modules={f"{module}.py": source}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with one plugin that works, one of each fault, and damaged metadata."""
    folder = tmp_path_factory.mktemp("site")
    add(folder, "good", GOOD)
    for name, (source, _, _) in FAULTS.items():
        add(folder, name, source)
    write_distribution(folder, "a-wreck", entry_points="[anything]\nthis line has no equals sign")
    write_distribution(folder, "gone-plugin", entry_points={"gone": "gone_plugin.backend"})
    write_distribution(
        folder,
        "future-plugin",
        entry_points={"future": "future_plugin"},
        requires=["tensorplug>=9"],
        modules={"future_plugin.py": "raise RuntimeError('imported')"},
    )
    for project, score in (("twice-plain", 5), ("twice-simd", 50)):
        source = plugin_source(score=f"return {score}", devices="return [NullDevice('twice:0')]")
        module = project.replace("-", "_")
        write_distribution(
            folder, project, entry_points={"twice": module}, modules={f"{module}.py": source}
        )
    return folder


def tensorplug(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command with `site` on the path, in addition to what is installed."""
    return subprocess.run(
        [sys.executable, "-m", "tensorplug", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=site.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "TENSORPLUG_BACKENDS": ",".join(sorted(NAMES - {""})),
            "TENSORPLUG_DISABLE": "switched-off",
        },
        timeout=120,
    )


def rows(output: str) -> dict[str, tuple[str, str]]:
    """State and reason of every candidate in a site, whatever else is installed."""
    return {
        c["name"] if c["name"] != "twice" else c["distribution"]: (c["state"], c["reason"])
        for c in json.loads(output)["candidates"]
        if c["name"] in NAMES
    }


EXPECTED = {
    **{name: (state, reason) for name, (_, state, reason) in FAULTS.items()},
    "good": ("ready", ""),
    "gone": (
        "failed",
        "its metadata is there but its module gone_plugin is not; pip uninstall gone-plugin, or "
        "install it again",
    ),
    "future": (
        "incompatible",
        "it needs tensorplug>=9 and this is tensorplug 0.2.0; "
        "pip install --upgrade tensorplug future-plugin",
    ),
    "twice-simd 1.0": ("ready", ""),
    "twice-plain 1.0": (
        "superseded",
        "twice-simd 1.0 comes first with score 50; open this one as twice@twice-plain",
    ),
}


BROKEN = {name for name, (state, _) in EXPECTED.items() if state in ("failed", "incompatible")}


@pytest.mark.parametrize(
    "switches",
    [
        pytest.param((), id="info"),
        pytest.param(("--safe",), id="info --safe", marks=pytest.mark.long),
    ],
)
def test_info_shows_every_fault_with_its_text_and_the_rest_works(site, switches):
    done = tensorplug(site, "info", "--json", *switches)

    found = rows(done.stdout)
    wreck = found.pop("")
    assert (done.returncode, done.stderr) == (0, "")
    assert found == EXPECTED
    assert wreck[0] == "failed"
    assert wreck[1].startswith(f"its metadata in {site} cannot be read, TypeError: ")
    assert sorted(d["name"] for d in json.loads(done.stdout)["devices"]) == ["good:0", "twice:0"]


def test_doctor_shows_every_fault_and_exits_with_1(site):
    done = tensorplug(site, "doctor", "--json")

    found = rows(done.stdout)
    found.pop("")
    assert (done.returncode, done.stderr) == (1, "")
    assert found == EXPECTED
    candidates = json.loads(done.stdout)["candidates"]
    assert {c["name"] for c in candidates if not c["healthy"]} == {"", *BROKEN}


def test_a_program_loads_all_and_uses_what_works(site):
    program = (
        "import tensorplug as tp\n"
        "tp.load_all()\n"
        "with tp.open('good') as backend: print(backend.name)\n"
        "print(tp.open('twice@twice-plain').name, tp.device('best').name)\n"
        "for name in ('exits', 'gone', 'switched-off'):\n"
        "    try: tp.open(name)\n"
        "    except tp.BackendUnavailable as e: print(type(e.__cause__).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd=site.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "TENSORPLUG_BACKENDS": "good,twice,exits,gone,switched-off",
            "TENSORPLUG_DISABLE": "switched-off",
        },
    )

    assert done.returncode == 0
    assert done.stdout.split() == [
        *("good:0", "twice:0", "good:0", "SystemExit", "ModuleNotFoundError", "NoneType")
    ]


@pytest.mark.parametrize("command", [("doctor",), ("info", "--safe")], ids=" ".join)
def test_a_crash_and_a_hang_are_rows_beside_a_backend_that_works(tmp_path, command):
    site = tmp_path / "site"
    add(site, "good", GOOD)
    for name, (source, _) in FATAL.items():
        add(site, name, source)

    done = tensorplug(site, *command, "--json", "--timeout", "8")

    assert done.stderr == ""
    assert rows(done.stdout) == {
        "good": ("ready", ""),
        **{name: ("failed", reason) for name, (_, reason) in FATAL.items()},
    }


def test_a_module_that_came_from_elsewhere_is_shadowed(site, tmp_path):
    folder = tmp_path / "folder"
    add(folder, "good", GOOD.replace("good", "other"))
    program = (
        "import good_plugin, sys, tensorplug as tp\n"
        "found = {c.value: c for c in tp.load_all_from_path(sys.argv[1]).candidates if c.folder}\n"
        "print(found['good_plugin'].state.value, found['good_plugin'].reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )

    assert done.stdout == (
        f"failed shadowed: its module good_plugin comes from {site / 'good_plugin.py'} and not "
        f"from {folder}; remove one of the two, or load the folder in a process of its own\n"
    )
