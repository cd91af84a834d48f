"""Caches on disk: no damage to files or folders changes a result, or says more than one line."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.long
WARNING = "name a folder of your own in TENSORPLUG_CACHE"
OTHER = 54321
"""A user who is neither this one nor root."""
PRELUDE = """
import json, sys
from tensorplug.system import cache
def full(*_):
    raise OSError(28, "No space left on device")
if sys.argv[1] == "full":
    cache.tempfile.mkstemp = full
import numpy as np, tensorplug as tp
x = tp.input("x", (3, 64), tp.F32)
y = tp.soft_max(tp.scale(x, scale=2.0) + x)
def compute(stream):
    with stream, tp.Scheduler([stream]).schedule(y) as run:
        print(json.dumps(run.run({x: np.ones((3, 64), np.float32)})[y].tolist()))
"""
OPENCL = """
from tensorplug_opencl import drivers
from tensorplug_opencl.device import OpenCLDevice
(driver,) = [d for d in drivers.devices() if d.platform.name.startswith('Intel')]
compute(OpenCLDevice("opencl:0", driver).open())
"""
EMULATOR = """
import tensorplug_simt.families
from tensorplug_emulator.device import EmulatedDevice
y = tp.scale(x, scale=2.0) + x
compute(EmulatedDevice().open())
"""
REFERENCE = """
from tensorplug_testing.cases import SMALL, build, expected
expected.SLOW = 0.0
built = build(next(case for case in SMALL if case.op == "soft_max"), 0)
print(json.dumps(expected.expected(built, [built.node])[0].tolist()))
"""
PROGRAMS = {
    "intel": OPENCL,
    "emulator": EMULATOR,
    "reference": REFERENCE,
}
"""Programs, each of which uses one of the caches."""


@dataclass(frozen=True)
class Answer:
    """What a program printed, and its warnings."""

    result: object
    warnings: list[str]


def start(program: str, folder: Path, *, mode: str = "") -> "subprocess.Popen[str]":
    """The program of one cache, which lies in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + PROGRAMS[program], mode],
        env={**os.environ, "TENSORPLUG_CACHE": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> Answer:
    """The answer of the process, which must not be a traceback nor take a minute."""
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return Answer(json.loads(output), errors.splitlines())


def run(program: str, folder: Path, *, mode: str = "") -> Answer:
    """The answer of a new process."""
    return finish(start(program, folder, mode=mode))


class Planted:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> "tuple[object, tuple[int]]":
        return os._exit, (66,)


def _nothing(_content: bytes, _rng: Random) -> bytes:
    return b""


def _part(content: bytes, rng: Random) -> bytes:
    return content[: rng.randrange(len(content) or 1)]


def _noise(content: bytes, rng: Random) -> bytes:
    return rng.randbytes(len(content))


def _bits(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 9)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _pickle(_content: bytes, _rng: Random) -> bytes:
    return pickle.dumps(Planted())


CONTENTS: list[Callable[[bytes, Random], bytes]] = [_nothing, _part, _noise, _bits, _pickle]


def _rewritten(folder: Path, rng: Random) -> None:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        file.write_bytes(rng.choice(CONTENTS)(file.read_bytes(), rng))


def _exchanged(folder: Path, rng: Random) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [file.read_bytes() for file in files]
    rng.shuffle(contents)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)


def _folders_for_files(folder: Path, _rng: Random) -> None:
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        file.unlink()
        file.mkdir()


def _links(folder: Path, _rng: Random) -> None:
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        file.unlink()
        file.symlink_to("/dev/zero")


def _pipes(folder: Path, _rng: Random) -> None:
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        file.unlink()
        os.mkfifo(file)


def _locks(folder: Path, _rng: Random) -> None:
    for each in [path for path in folder.rglob("*") if path.is_dir()]:
        (each / "lock").touch()


def _open_to_all(folder: Path, _rng: Random) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777)


def _of_another(folder: Path, _rng: Random) -> None:
    if os.geteuid():
        pytest.skip("only root can give files to another user")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, OTHER, OTHER)


def _file(folder: Path, _rng: Random) -> None:
    shutil.rmtree(folder)
    folder.touch()


def _nowhere(folder: Path, _rng: Random) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("/proc/nope")


DAMAGES = [
    *(_rewritten, _exchanged, _folders_for_files, _links, _pipes, _locks),
    *(_open_to_all, _of_another, _file, _nowhere),
]


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    """Each program that can run here."""
    _needs(request.param)
    return str(request.param)


def _needs(program: str) -> None:
    if program == "emulator":
        missing = pytest.importorskip("tensorplug_emulator").missing()
        if missing:
            pytest.skip(missing)
    if program == "intel":  # PoCL has a cache of its own
        drivers = pytest.importorskip("tensorplug_opencl.drivers")
        if not any(d.platform.name.startswith("Intel") for d in drivers.devices()):
            pytest.skip("the driver of Intel is not installed")


def test_damaged_caches_change_no_result_and_say_one_line_at_most(
    program: str, rng: Random, attempts: Callable[[int, int], int], tmp_path: Path
) -> None:
    right = run(program, tmp_path / "whole")
    assert right.warnings == []
    count = attempts(3, 4 * len(DAMAGES))
    for i, damage in enumerate((rng.sample(DAMAGES, len(DAMAGES)) * 4)[:count]):
        print("damage", damage.__name__)
        folder = tmp_path / f"{i}"
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder, rng)

        answer = run(program, folder)

        assert answer.result == right.result
        assert len(answer.warnings) <= 1
        assert all(WARNING in line for line in answer.warnings)


def test_full_disk_changes_no_result_and_says_one_line(program: str, tmp_path: Path) -> None:
    right = run(program, tmp_path / "roomy")

    full = [run(program, tmp_path / "full", mode="full") for _ in range(2)]

    assert [answer.result for answer in full] == [right.result] * 2
    assert all(len(answer.warnings) <= 1 for answer in full)


def test_processes_that_start_at_once_on_an_empty_cache_are_all_right(
    program: str, attempts: Callable[[int, int], int], tmp_path: Path
) -> None:
    started = [start(program, tmp_path / "cache") for _ in range(attempts(2, 9))]
    answers = [finish(process) for process in started]

    assert all(answer == Answer(answers[0].result, []) for answer in answers)


def test_processes_that_are_killed_leave_a_cache_that_works(
    program: str, rng: Random, attempts: Callable[[int, int], int], tmp_path: Path
) -> None:
    right = run(program, tmp_path / "other")
    for _ in range(attempts(2, 15)):
        process = start(program, tmp_path / "cache")
        time.sleep(rng.uniform(0.2, 3.0))
        process.kill()
        process.wait()
        process.communicate()

    assert run(program, tmp_path / "cache") == right
