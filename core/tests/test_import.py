"""Importing tensorplug does nothing but import."""

import builtins
import json
import subprocess
import sys

import pytest

import tensorplug as tp

PROGRAM = """
import json, os, sys, threading

import numpy

opened = []
watched = {"open", "os.listdir", "os.system", "subprocess.Popen", "socket.connect", "ctypes.dlopen"}

def watch(event, args):
    if event in watched:
        opened.append((event, str(args[0])))

before = dict(os.environ)
sys.addaudithook(watch)

import tensorplug

print(json.dumps({
    "threads": threading.active_count(),
    "modules": sorted(sys.modules),
    "environment_changed": dict(os.environ) != before,
    "opened": opened,
}))
"""


@pytest.fixture(scope="module")
def seen() -> dict:
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert out.stderr == ""
    return json.loads(out.stdout)


def test_import_starts_no_thread(seen: dict) -> None:
    assert seen["threads"] == 1


def test_import_changes_no_variable(seen: dict) -> None:
    assert not seen["environment_changed"]


@pytest.mark.parametrize("name", ["pyopencl", "cupy", "Metal", "gguf", "typer", "rich", "torch"])
def test_import_loads_no_driver_and_no_tool(seen: dict, name: str) -> None:
    assert name not in seen["modules"]


def test_import_loads_no_backend(seen: dict) -> None:
    assert [m for m in seen["modules"] if m.startswith("tensorplug_")] == []


def test_import_runs_and_connects_to_nothing(seen: dict) -> None:
    events = {event for event, _ in seen["opened"]}

    assert events <= {"open", "os.listdir"}


def test_import_reads_no_metadata_of_installed_distributions(seen: dict) -> None:
    metadata = [path for _, path in seen["opened"] if "entry_points.txt" in path]

    assert metadata == []


# --- names ---------------------------------------------------------------------------------------


def test_import_of_all_names_replaces_no_builtin() -> None:
    names: dict[str, object] = {}

    exec("from tensorplug import *", names)

    assert {name for name in names if hasattr(builtins, name)} == set()
    assert names["relu"] is tp.relu


def test_every_op_and_every_listed_name_is_an_attribute() -> None:
    assert [name for name in (*tp.__all__, *tp.ops.__all__) if not hasattr(tp, name)] == []


def test_there_are_about_sixty_names_besides_the_ops() -> None:
    assert len(set(tp.__all__) - set(tp.ops.__all__)) <= 60
