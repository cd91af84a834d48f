"""Hostile plugins: each is one row with its reason, and a good plugin works in spite of them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from tensorplug_testing.distributions import plugin_source, write_distribution

from .hostile_plugins import Hostile, everything

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
GOOD = plugin_source(devices="return [NullDevice('good:0')]")

INSIDE = """
import json, os, sys
import tensorplug
from tensorplug.cli.survey import survey
from tensorplug.registry import Registry
import email.parser, tensorplug_testing.null
str(survey(Registry(path=[], environ={})))  # imports once what every child needs
for folder in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        out = os.fdopen(write, "w")
        try:
            sys.path.append(folder)
            registry = Registry(path=[folder], environ={})
            loaded = registry.load_all().to_json()
            surveyed = survey(registry)
            json.dump([loaded, surveyed.to_json(), str(surveyed)], out)
        except BaseException as error:
            json.dump(f"{type(error).__name__} came out", out)
        out.close()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        print(answer.read() or '"it ended"', file=sys.stderr)
    os.wait()
"""
"""Loads each folder in a forked process and tells what the reports say, a line for each."""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process for each plugin")


def shelf(folder: Path, hostile: Sequence[Hostile]) -> Path:
    """A folder with a good plugin and these."""
    folder.mkdir()
    write_distribution(
        folder,
        "good-plugin",
        entry_points={"good": "good_plugin"},
        modules={"good_plugin.py": GOOD},
    )
    for plugin in hostile:
        plugin.write(folder)
    return folder


def row(report: dict[str, object], plugin: Hostile) -> dict[str, str]:
    """The only other row than that of the good plugin."""
    candidates = report["candidates"]
    assert isinstance(candidates, list)
    rows = [c for c in candidates if c["name"] != "good"]
    assert len(rows) == 1, f"{plugin}: {rows}"
    return rows[0]


def check(plugin: Hostile, report: dict[str, object]) -> None:
    """The row of a plugin has a right state and a reason, and a good plugin is not hurt by it."""
    if plugin.kind == "files" or plugin.what == "entry-empty":
        return  # readers of metadata leave some of these out, and make something of others
    found = row(report, plugin)
    assert found["state"] in plugin.states, f"{plugin}: {found}"
    assert plugin.words in found["reason"], f"{plugin}: {found}"
    assert len(found["reason"]) < 12_000, plugin


@needs_fork
def test_a_report_has_a_row_for_every_hostile_plugin_and_the_good_one_is_ready(
    tmp_path: Path, rng: Random, attempts: Callable[[int, int], int]
) -> None:
    contained = [p for p in everything() if not p.ends]
    chosen = rng.sample(contained, attempts(60, len(contained)))
    folders = [str(shelf(tmp_path / str(i), [p])) for i, p in enumerate(chosen)]

    done = subprocess.run(
        [sys.executable, "-c", INSIDE, json.dumps(folders)],
        check=False,
        capture_output=True,
        timeout=540,
    )

    lines = [line for line in done.stderr.decode().splitlines() if line.startswith(("[", '"'))]
    for plugin, line in zip(chosen, lines, strict=True):
        answer = json.loads(line)
        assert isinstance(answer, list), f"{plugin}: {answer}"
        loaded, surveyed, text = answer
        good = next(c for c in loaded["candidates"] if c["name"] == "good")
        assert good["state"] == "available", plugin
        assert [d["name"] for d in surveyed["devices"]][:1] == ["good:0"] or (
            plugin.kind == "changes"
        ), plugin
        assert not CONTROL.search(text), f"{plugin}: {text!r}"
        check(plugin, surveyed)


@pytest.mark.parametrize("command", [("doctor",), ("info", "--safe")], ids=" ".join)
def test_probes_in_other_processes_survive_every_hostile_plugin(
    tmp_path: Path, rng: Random, attempts: Callable[[int, int], int], command: tuple[str, ...]
) -> None:
    deadly = [p for p in everything() if p.ends and p.what != "hangs"]
    hangs = [p for p in everything() if p.what == "hangs"]
    others = [p for p in everything() if not p.ends and p.kind not in ("metadata", "files")]
    chosen = [rng.choice(deadly), *rng.sample(others, attempts(1, 38))]
    chosen += rng.sample(hangs, attempts(0, 1))
    named = Hostile("files", "project-escapes")
    site = shelf(tmp_path / "site", [*chosen, named])

    done = tensorplug(site, [p.name for p in (*chosen, named)], *command, "--json")

    assert (done.returncode, done.stderr) == (1 if command == ("doctor",) else 0, "")
    report = json.loads(done.stdout)
    rows = {c["name"]: c for c in report["candidates"]}
    for plugin in chosen:
        check(plugin, {"candidates": [rows[plugin.name]]})
    assert rows[named.name]["state"] == "failed"
    assert rows["good"]["state"] == "ready"


def test_doctor_names_what_cannot_be_printed_or_loaded_and_prints_no_control_characters(
    tmp_path: Path,
) -> None:
    plugins = [Hostile("files", "project-escapes"), Hostile("raises", "text-raises", "devices")]
    site = shelf(tmp_path / "site", plugins)

    done = tensorplug(site, [plugin.name for plugin in plugins], "doctor")

    assert done.returncode == 1
    assert "\\x1b[31m<script>" in done.stdout
    assert "E, whose text cannot be read" in done.stdout
    assert "it cannot be loaded by its name: " in done.stdout
    assert done.stdout.endswith("something is wrong\n")
    assert not CONTROL.search(done.stdout + done.stderr)


def test_info_says_that_a_plugin_closed_its_output(tmp_path: Path) -> None:
    plugin = Hostile("changes", "closes-stdout", "import")
    site = shelf(tmp_path / "site", [plugin])

    done = tensorplug(site, [plugin.name], "info")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: standard output was closed by a plugin, or by a library of one\n"
    )


def tensorplug(
    site: Path, names: Sequence[str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command where the good plugin and those of these names are allowed."""
    timeout = ("--timeout", "10") if "--json" in arguments else ()
    return subprocess.run(
        [sys.executable, "-m", "tensorplug", *arguments, *timeout],
        check=False,
        capture_output=True,
        text=True,
        cwd=site.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "TENSORPLUG_BACKENDS": ",".join(["good", *names]),
        },
        timeout=540,
    )
