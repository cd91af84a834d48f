"""Signals at random moments: no traceback, the right exit status, and nothing is left behind."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

START = "from tensorplug_console import run; print('begins', flush=True); run({module!r})"
"""Says when it begins: before that the interpreter itself handles signals."""
STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}
PART = 32 << 20
ASSEMBLE = """
from tensorplug_llm.models import MODELS, PackagedModel, find_model
def main():
    parts = (("big_a", "m"), ("big_b", "m"))
    MODELS["big"] = PackagedModel("big", ("big",), parts, {digest!r}, {size})
    find_model("big")
"""


@dataclass(frozen=True)
class Job:
    """A command that may write into `folder`, and what is there when it is done."""

    module: str
    arguments: tuple[str, ...]
    folder: Path
    wanted: frozenset[str]
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, signal_name: str = "", delay: float = 0.0) -> tuple[int, str, float]:
        """The exit status, stderr and seconds of a process that gets a signal after `delay`."""
        process = subprocess.Popen(
            [sys.executable, "-c", START.format(module=self.module), *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environ},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        begin = time.monotonic()
        if signal_name:
            time.sleep(delay)
            process.send_signal(signal.Signals[signal_name])
        errors = process.communicate()[1]
        return process.returncode, errors, time.monotonic() - begin

    def unfinished(self) -> list[str]:
        """Temporary files that are there."""
        return [path.name for path in self.folder.iterdir() if path.name.endswith(".part")]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with random weights that takes a second to quantise."""
    path = tmp_path / "in.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(0)
    for number in range(4):
        writer.add_tensor(f"{number}.weight", rng.standard_normal((512, 1024), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def quantize(tmp_path: Path, model: Path) -> Job:
    folder = tmp_path / "out"
    folder.mkdir()
    arguments = ("quantize", str(model), str(folder / "m"), "--type", "q4_K", "--force")
    return Job("tensorplug.cli", arguments, folder, frozenset({"m"}))


@pytest.fixture
def assemble(tmp_path: Path) -> Job:
    digest = hashlib.sha256(bytes(2 * PART)).hexdigest()
    program = ASSEMBLE.format(digest=digest, size=2 * PART)
    (tmp_path / "assemble_big.py").write_text(program)
    for name in ("big_a", "big_b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m").touch()
        os.truncate(tmp_path / name / "m", PART)
    folder = tmp_path / "cache"
    folder.mkdir()
    environ = {"PYTHONPATH": str(tmp_path), "TENSORPLUG_LLM_CACHE": str(folder)}
    names = {f"big-{digest[:12]}.gguf", f"big-{digest[:12]}.seen"}
    return Job("assemble_big", (), folder, frozenset(names), environ)


@pytest.fixture
def generate(tmp_path: Path) -> Job:
    site = Path(__file__).parents[2] / "apps/llm/tests"
    path = tmp_path / "tiny.gguf"
    program = "import sys, pathlib, gguf_files; gguf_files.write_model(pathlib.Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", program, str(path)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    folder = tmp_path / "none"
    folder.mkdir()
    arguments = ("generate", str(path), "--prompt", "he", "--tokens", "300")
    return Job("tensorplug_llm.cli", (*arguments, "--device", "cpu"), folder, frozenset())


@pytest.mark.parametrize("name", ["quantize", "assemble", "generate"])
def test_a_signal_ends_a_command_in_order_at_any_moment(
    name: str,
    request: pytest.FixtureRequest,
    rng: Random,
    attempts: Callable[[int, int], int],
) -> None:
    job: Job = request.getfixturevalue(name)
    status, errors, seconds = job.run()
    assert status == 0, errors

    for _ in range(attempts(1, 60)):
        signal_name = rng.choice(list(STATUS))
        delay = rng.uniform(0.0, seconds)
        for path in job.folder.iterdir():
            path.unlink()
        status, errors, _ = job.run(signal_name, delay)

        where = f"{signal_name} after {delay:.3f} of {seconds:.3f} s"
        assert status in (0, STATUS[signal_name]), f"{where}: {errors}"
        assert "Traceback" not in errors, f"{where}: {errors}"
        assert signal_name == "SIGKILL" or job.unfinished() == [], where

    # A process that was killed could not remove its file, and the next one does.
    (job.folder / ".keep").touch()
    job.run("SIGKILL", seconds * 0.6)
    status, errors, _ = job.run()
    assert status == 0, errors
    assert {path.name for path in job.folder.iterdir()} == job.wanted | {".keep"}
