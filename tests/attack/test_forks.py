"""Processes started while devices are in use: each computes the same, or raises at once."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]

PROGRAM = """
import gc, multiprocessing, sys, threading, warnings
import numpy as np
import tensorplug as tp

warnings.simplefilter("ignore")  # Python warns of forks in a process with threads
METHOD, SPEC, MOMENT, WHERE, COUNT = sys.argv[1:]
x, w = tp.input("x", (64, 256), tp.F32), tp.input("w", (512, 256), tp.F32)
y = tp.soft_max(x @ w.T)
GIVEN = {
    x: np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256),
    w: np.linspace(-2, 3, 512 * 256, dtype=np.float32).reshape(512, 256),
}
KEPT = {}

def opened():
    KEPT["stream"] = tp.open(SPEC)
    KEPT["host"] = tp.open("cpu")

def planned():
    opened()
    KEPT["run"] = tp.Scheduler([KEPT["stream"], KEPT["host"]]).schedule(y)

def ran():
    planned()
    return KEPT["run"].run(GIVEN)[y]

def computed():
    if "run" not in KEPT:
        if "stream" not in KEPT:
            opened()
        KEPT["run"] = tp.Scheduler([KEPT["stream"], KEPT["host"]]).schedule(y)
    return KEPT["run"].run(GIVEN)[y]

def again():
    KEPT.clear()
    gc.collect()
    return computed()

def work(number):
    try:
        return (again if WHERE == "again" else computed)().tobytes()
    except tp.DeviceError as error:
        return str(error)

MOMENTS = {"nothing": lambda: None, "listed": tp.devices, "opened": opened, "planned": planned,
           "ran": ran}

if __name__ == "__main__":
    MOMENTS[MOMENT]()
    with multiprocessing.get_context(METHOD).Pool(int(COUNT)) as pool:
        answers = pool.map_async(work, range(int(COUNT))).get(timeout=100)
    right = computed()
    for answer in answers:
        same = isinstance(answer, bytes) and np.allclose(
            np.frombuffer(answer, np.float32), right.reshape(-1), atol=1e-6
        )
        print("right" if same else answer if isinstance(answer, str) else "wrong")
"""
METHODS = ("fork", "forkserver", "spawn")
MOMENTS = ("nothing", "listed", "opened", "planned", "ran")
WHERE = ("kept", "again")
"""Whether the child uses what its parent made, or lets go of it and opens the device."""
SURVIVING = ("cpu?threads=2", "cpu@tensorplug-cpu?threads=2")
REASON = (
    "was made before this process was forked, and its driver does not work in the child; start "
    "processes by spawn or forkserver, or open devices only after the fork"
)


def devices() -> list[str]:
    """The processor, and every device of OpenCL."""
    drivers = pytest.importorskip("tensorplug_opencl.drivers")
    return [*SURVIVING, *(f"opencl:{i}" for i, _ in enumerate(drivers.devices()))]


def answers(program: Path, *arguments: str) -> list[str]:
    """What the processes of a pool found, one line for each."""
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_children_compute_the_same_or_say_at_once_what_to_do(
    rng: Random, attempts: Callable[[int, int], int], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    chances = [
        (method, spec, moment, where)
        for method in METHODS
        for spec in devices()
        for moment in MOMENTS
        for where in WHERE
    ]
    # Those of old that hung come in every attack.
    first = [("fork", spec, "ran", where) for spec in devices() for where in WHERE]
    rest = rng.sample(chances, len(chances))
    for method, spec, moment, where in (first + rest)[: attempts(len(first) + 4, len(chances))]:
        print(method, spec, moment, where)
        survives = method != "fork" or spec in SURVIVING or moment == "nothing"
        count = rng.randrange(1, 4)

        found = answers(program, method, spec, moment, where, str(count))

        assert len(found) == count
        for answer in found:
            assert answer == "right" if survives else answer.endswith(REASON)
