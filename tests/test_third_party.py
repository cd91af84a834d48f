"""A stranger's distribution: built, installed, discovered, chosen, explained, uninstalled, gone."""

import json
import subprocess
import sys

import pytest

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-tensors"
version = "2.5"
description = "Acme boards for tensorplug"
requires-python = ">=3.11"
dependencies = ["tensorplug>=0.2,<0.3"]

[project.entry-points."tensorplug.backends"]
acme = "acme_tensors.plugin"
"""

PLUGIN = '''
"""The entry point: no driver is imported here."""

import tensorplug

api_version = (0, 1)


@tensorplug.hookimpl
def tensorplug_score():
    return 10


@tensorplug.hookimpl
def tensorplug_devices():
    from acme_tensors.driver import AcmeDevice

    return [AcmeDevice("acme:0")]


@tensorplug.hookimpl
def tensorplug_features():
    return {"boards": "1"}
'''

DRIVER = '''
"""The hardware: memory of its own, and no op but mul_mat and add."""

from tensorplug_testing.null import NullDevice


class AcmeDevice(NullDevice):
    def __init__(self, name):
        super().__init__(name, ops={"mul_mat", "add"}, memory=1 << 26)

    @property
    def description(self):
        return "Acme T1000"

    @property
    def hardware_id(self):
        return "0000:42:00.0"
'''

PROGRAM = """
import json
import sys

import numpy as np

import tensorplug as tp

report = tp.load_all()
loaded = "acme_tensors.driver" in sys.modules
with tp.open("acme") as fast, tp.open("cpu") as slow:
    w = fast.place("w", np.eye(4, dtype=np.float32) * 2, usage=tp.WEIGHTS)
    x = tp.input("x", (3, 4), tp.F32)
    y = tp.soft_max(x @ w.T)
    with tp.Scheduler([fast, slow]).schedule(y) as schedule:
        values = schedule.run({x: np.zeros((3, 4), np.float32)})[y]
        explanation = schedule.explain()
print(json.dumps({
    "report": report.to_json(),
    "driver imported by load_all": loaded,
    "devices": [device.name for device in tp.devices()],
    "best": tp.device("best").name,
    "by address": tp.device("pci:42:00.0").name,
    "features": tp.features("acme"),
    "values": values.tolist(),
    "explanation": explanation.to_json(),
}))
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """The wheel of a third party."""
    folder = tmp_path_factory.mktemp("acme")
    (folder / "acme_tensors").mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "plugin": PLUGIN, "driver": DRIVER}.items():
        (folder / "acme_tensors" / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


def test_a_third_party_is_discovered_chosen_explained_and_gone_again(environment, kit, acme):
    environment.install(*kit)
    before = json.loads(environment.output("tensorplug", "info", "--json"))
    environment.install(acme)

    told = json.loads(environment.output("python", "-c", PROGRAM))
    explained = environment.output(
        *("tensorplug", "explain", "--example", "--device", "acme", "--device", "cpu", "--json")
    )
    chosen = environment.output("tensorplug", "explain", "--example", "--json")
    doctor = environment.output("tensorplug", "doctor")

    assert [c["name"] for c in before["candidates"]] == ["cpu"]
    assert [(c["name"], c["distribution"], c["state"]) for c in told["report"]["candidates"]] == [
        ("acme", "acme-tensors 2.5", "available"),
        ("cpu", "tensorplug-cpu 0.2.0", "available"),
    ]
    assert told["driver imported by load_all"] is False
    assert told["devices"] == ["acme:0", "cpu:0"]
    assert (told["best"], told["by address"]) == ("acme:0", "acme:0")
    assert told["features"] == {"boards": "1"}
    assert told["values"] == [[0.25] * 4] * 3
    nodes = {node["op"]: node for node in told["explanation"]["nodes"]}
    assert {op: node["device"] for op, node in nodes.items()} == {
        "mul_mat": "acme:0",
        "soft_max": "cpu:0",
    }
    assert nodes["mul_mat"]["cause"] == "its weights w lie in acme:0"
    assert nodes["soft_max"]["refusals"] == {"acme:0": "acme:0: does not do soft_max"}
    assert json.loads(explained) == json.loads(chosen)
    assert "acme:0: open, memory, compute, close ok" in doctor

    environment.pip("uninstall", "--yes", "acme-tensors")

    after = json.loads(environment.output("tensorplug", "info", "--json"))
    missing = environment.run("tensorplug", "explain", "--example", "--device", "acme")
    assert [c["name"] for c in after["candidates"]] == ["cpu"]
    assert [d["name"] for d in after["devices"]] == ["cpu:0"]
    assert missing.returncode == 1
    assert missing.stderr == (
        "error: acme: no installed backend has this name; installed backends: cpu\n"
    )


def test_a_plugin_for_a_later_tensorplug_is_incompatible_and_never_imported(environment, kit, acme):
    environment.install(*kit, acme)
    (metadata,) = environment.site_packages.glob("acme_tensors-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("<0.3,>=0.2", ">=7"))
    (environment.site_packages / "acme_tensors" / "plugin.py").write_text("print('imported')")

    info = json.loads(environment.output("tensorplug", "info", "--json"))
    asked = environment.run("tensorplug", "explain", "--example", "--device", "acme")

    acme, cpu = info["candidates"]
    reason = (
        "it needs tensorplug>=7 and this is tensorplug 0.2.0; "
        "pip install --upgrade tensorplug acme-tensors"
    )
    assert (acme["state"], acme["reason"]) == ("incompatible", reason)
    assert cpu["state"] == "ready"
    assert asked.stderr == f"error: acme: acme-tensors 2.5 is incompatible: {reason}\n"
    environment.pip("uninstall", "--yes", "acme-tensors")


def test_a_running_program_sees_an_installation_and_its_end_when_it_looks_again(
    environment, kit, acme
):
    environment.install(*kit)
    program = (
        "import subprocess, sys, tensorplug as tp\n"
        "def pip(*a): subprocess.run([sys.argv[1], '-m', 'pip', '--python', sys.executable, '-q',"
        " *a], check=True)\n"
        "names = lambda: [d.name for d in tp.devices()]\n"
        "print(names())\n"
        "pip('install', '--no-index', '--no-deps', sys.argv[2])\n"
        "print(names(), tp.refresh().healthy, names())\n"
        "pip('uninstall', '--yes', 'acme-tensors')\n"
        "tp.refresh(); print(names())\n"
    )

    lines = environment.output("python", "-c", program, sys.executable, acme).splitlines()

    assert lines == ["['cpu:0']", "['cpu:0'] True ['acme:0', 'cpu:0']", "['cpu:0']"]
