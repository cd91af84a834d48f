"""Yesterday's plugins with today's core: wheels that were frozen for each minor of the interface.

`tests/frozen/MINOR` has the plugins of a minor as their authors built them. They are never rebuilt:
a change that makes one fail belongs into a new major version of the interface.
"""

import json
from pathlib import Path

import pytest

from tensorplug.registry.hooks import API_VERSION

FROZEN = sorted(Path(__file__).with_name("frozen").glob("*/*.whl"))
NAMES = [wheel.name.partition("-")[0].removeprefix("tensorplug_") for wheel in FROZEN]
BACKENDS = [name for name in NAMES if name != "acme_ops"]
OLDEST = "older"
"""Of the minor before the first: its hooks take fewer arguments and its device has no abilities."""

PROGRAM = """
import json

import numpy as np

import tensorplug as tp

tp.load_all()
x = tp.input("x", (2, 3), tp.F32)
with tp.open("older") as old, tp.open("cpu") as cpu:
    w = old.place("w", np.eye(3, dtype=np.float32), usage=tp.WEIGHTS)
    y = tp.soft_max(x @ w.T)
    with tp.Scheduler([old, cpu]).schedule(y) as run:
        values = run.run({x: np.zeros((2, 3), np.float32)})[y]
        devices = [node.device for node in run.explain().nodes]
    abilities = old.device.info.capabilities
print(json.dumps({
    "values": values.tolist(),
    "devices": devices,
    "features": tp.features("older"),
    "abilities": [abilities.events, abilities.async_transfer, abilities.host_import],
}))
"""


@pytest.fixture(scope="module")
def installed(environment, kit):
    """An environment with today's kit and all frozen plugins."""
    environment.install(*kit, *FROZEN)
    return environment


def kit_of(installed, *choice):
    """The summary of the conformance kit on a frozen plugin."""
    done = installed.run("tensorplug", "test", *choice, "--json", "-j", "2")
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    failures = [record for record in told["records"] if record["verdict"] == "failed"]
    assert failures == []
    return told["summary"]


def test_every_minor_of_this_major_has_frozen_plugins():
    major, minor = API_VERSION

    assert {wheel.parent.name for wheel in FROZEN} == {f"{major}.{n}" for n in range(minor + 1)}


@pytest.mark.long
def test_every_frozen_backend_is_ready(installed):
    candidates = json.loads(installed.output("tensorplug", "info", "--json"))["candidates"]

    found = {c["name"]: (c["state"], c["reason"]) for c in candidates}
    assert {name: found[name] for name in BACKENDS} == dict.fromkeys(BACKENDS, ("ready", ""))


@pytest.mark.long
@pytest.mark.parametrize("name", BACKENDS)
def test_kit_passes_on_a_frozen_backend(installed, name):
    summary = kit_of(installed, "--device", name, "--tier", "smoke")

    assert summary["passed"] > 500


@pytest.mark.long
def test_kit_passes_on_a_frozen_op(installed):
    summary = kit_of(installed, "--device", "cpu", "-o", "acme.snake", "--tier", "full")

    assert summary["passed"] == 6


@pytest.mark.long
def test_hook_with_fewer_arguments_and_device_without_abilities_work(installed):
    told = json.loads(installed.output("python", "-c", PROGRAM))

    assert told == {
        "values": [[pytest.approx(1 / 3)] * 3] * 2,
        "devices": ["older:0", "cpu:0"],
        "features": {"configured as": OLDEST},
        "abilities": [False, False, False],
    }
