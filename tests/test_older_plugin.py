"""A wheel that speaks the minor before this one's plugin interface: it is used as it is."""

import json
import subprocess
import sys

import pytest

from tensorplug.cli.scaffold import scaffold
from tensorplug.registry.hooks import API_VERSION

OLDER = (API_VERSION[0], API_VERSION[1] - 1)

CONFIGURE = '''

NAMES = []


@tensorplug.hookimpl
def tensorplug_configure(name: str) -> None:
    """The environment came later, as a second argument."""
    NAMES.append(name)


@tensorplug.hookimpl
def tensorplug_features() -> dict[str, str]:
    """Tell what came in."""
    return {"configured as": NAMES[0]}
'''

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


def cut(path, start, end):
    """Take a part out of a file, from one text up to another."""
    text = path.read_text()
    first = text.index(start)
    path.write_text(text[:first] + text[text.index(end, first) :])


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """The wheel of a plugin that was written for the minor before."""
    folder = tmp_path_factory.mktemp("older") / "older"
    scaffold("older", folder)
    plugin = folder / "src" / "tensorplug_older" / "plugin.py"
    text = plugin.read_text().replace("api_version = (0, 1)", f"api_version = {OLDER}")
    plugin.write_text(text.rstrip() + "\n" + CONFIGURE)
    cut(plugin.with_name("device.py"), "    def import_host", "    def _open")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (folder / "dist").iterdir()
    return wheel


@pytest.mark.long
def test_plugin_of_the_minor_before_works_with_fewer_arguments_and_abilities(
    environment, kit, older
):
    environment.install(*kit, older)

    told = json.loads(environment.output("python", "-c", PROGRAM))
    info = json.loads(environment.output("tensorplug", "info", "--json"))
    kit = json.loads(
        environment.output(
            *("tensorplug", "test", "--device", "older", "--tier", "smoke", "--json")
        )
    )

    assert told["values"] == [[pytest.approx(1 / 3)] * 3] * 2
    assert told["devices"] == ["older:0", "cpu:0"]
    assert told["features"] == {"configured as": "older"}
    assert told["abilities"] == [False, False, False]
    states = {c["name"]: c["state"] for c in info["candidates"]}
    assert states["older"] == "ready"
    assert kit["summary"]["failed"] == 0
