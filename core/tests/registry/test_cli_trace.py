"""`tensorplug trace`: what a command does is recorded, and the command goes on as without it."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tensorplug.cli import app

SCRIPT = """
import subprocess, sys
import numpy as np
import tensorplug as tp
from tensorplug_testing.null import NullDevice

first, last = NullDevice(profiling=True), NullDevice("host:0", host=True)
x = tp.input("x", (4, 8), tp.F32)
doubled = tp.add(x, x)
y = tp.mul(doubled, doubled)
with first, last, first.open() as one, last.open() as two, tp.Scheduler([one, two]) as scheduler:
    with scheduler.schedule(y, pins={doubled: one, y: two}) as plan:
        print(plan.run({x: np.ones(x.shape, np.float32)})[y].sum())
"""
IN_TWO_PROCESSES = (
    SCRIPT
    + """
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "again"], check=True)
"""
)


@pytest.fixture
def script(tmp_path):
    """Write a program; returns its path."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def trace(tmp_path):
    """Run `tensorplug trace` in this process; the file is `run.json`."""

    def invoke(*arguments):
        out = ["-o", tmp_path / "run.json"]
        return CliRunner().invoke(app, ["trace", *map(str, [*out, "--", *arguments])])

    return invoke


def events(path):
    return json.loads(path.read_text())["traceEvents"]


def test_trace_goes_on_as_the_command_and_sums_up_on_stderr(trace, script, tmp_path, capfd):
    result = trace(script(SCRIPT + "sys.exit(3)"))

    lines = result.stderr.splitlines()
    assert result.exit_code == 3
    assert capfd.readouterr().out == "128.0\n"
    assert lines[0].startswith(f"{tmp_path / 'run.json'}: ")
    assert lines[0].endswith(" for 0.0 ms; copies between devices: 2, 256 B")
    assert [line.split()[0] for line in lines[2:-1]] == ["host", "null:0", "host:0"]
    assert {e["name"] for e in events(tmp_path / "run.json")} >= {"write x", "copy x", "add"}


def spans(pid, track, *times):
    """Events of one track: from and to in milliseconds."""
    yield {"ph": "M", "pid": pid, "tid": track, "name": "thread_name", "args": {"name": str(track)}}
    for start, end in times:
        begun = {"ts": 1000 * start, "dur": 1000 * (end - start)}
        yield {"ph": "X", "pid": pid, "tid": track, "name": "add", "args": {}, **begun}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ([(0, 4)], [(4, 6)], 0),
        ([(0, 4)], [(3, 6)], 1),
        ([(0, 4), (5, 9)], [(1, 2), (3, 6)], 3),
        ([(0, 4), (1, 9)], [(1, 2), (1, 2)], 1),
    ],
)
def test_summary_says_how_long_streams_worked_side_by_side(
    trace, tmp_path, first, second, together
):
    found = [*spans(1, 1, *first), *spans(1, 2, *second)]
    kept = {"traceEvents": found, "otherData": {"begin_ns": 0}}
    code = (
        "import os, pathlib; folder = pathlib.Path(os.environ['TENSORPLUG_TRACE'])\n"
        f"(folder / '1.json').write_text({json.dumps(kept)!r})"
    )

    result = trace(sys.executable, "-c", code)

    assert f"in parallel for {together:.1f} ms" in result.stderr


def test_all_processes_of_a_command_are_in_one_trace(trace, script, tmp_path):
    result = trace(script(IN_TWO_PROCESSES))

    found = events(tmp_path / "run.json")
    named = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    begun = {e["pid"]: e["ts"] for e in reversed(found) if e["ph"] == "X"}
    tails = [e["id"] for e in found if e["ph"] == "s"]
    assert result.exit_code == 0
    assert set(named.values()) == {f"program.py ({pid})" for pid in named}
    assert len(named) == 2
    assert min(begun.values()) == 0 < max(begun.values())
    assert len(tails) == len(set(tails)) > 0


def test_trace_as_json_leaves_stdout_to_the_summary(trace, script, tmp_path, capfd):
    result = CliRunner().invoke(
        app, ["trace", str(script(SCRIPT)), "--json", "-o", str(tmp_path / "run.json")]
    )

    summary = json.loads(result.stdout)
    assert capfd.readouterr().err == "128.0\n"
    assert (summary["status"], summary["processes"], summary["copied_bytes"]) == (0, 1, 256)
    assert [track["name"] for track in summary["tracks"]] == ["host", "null:0", "host:0"]
    assert all(t["busy_ms"] <= summary["duration_ms"] for t in summary["tracks"])


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        (["nonsense"], 2, "nonsense is not a command; give one that is on PATH, a .py file, or -m"),
        (["missing.py"], 2, "there is no file missing.py"),
        ([sys.executable, "-c", "pass"], 1, "recorded nothing; recorded is what a tensorplug.Sch"),
        ([sys.executable, "-c", "exit(7)"], 7, "recorded nothing and ended with status 7; "),
        (["-m", "nonsense"], 1, "-m recorded nothing and ended with status 1"),
    ],
)
def test_trace_says_why_there_is_none(trace, tmp_path, command, status, sentence):
    result = trace(*command)

    assert result.exit_code == status
    assert result.stderr.startswith("error: trace: ")
    assert sentence in result.stderr
    assert not (tmp_path / "run.json").exists()


@pytest.mark.skipif(os.name == "nt", reason="a signal is a status like any other there")
def test_command_that_a_signal_ends_has_its_status(trace):
    result = trace(sys.executable, "-c", "import os; os.kill(os.getpid(), 15)")

    assert result.exit_code == 128 + 15
    assert "recorded nothing and ended with SIGTERM" in result.stderr


@pytest.mark.parametrize(
    ("out", "sentence"),
    [("nowhere/run.json", "no folder"), (".", "is a folder; name a file in it")],
)
def test_place_that_cannot_be_written_is_refused_before_the_command_runs(
    tmp_path, out, sentence, capfd
):
    code = "print('ran')"
    result = CliRunner().invoke(
        app, ["trace", "-o", str(tmp_path / out), "--", sys.executable, "-c", code]
    )

    assert (result.exit_code, capfd.readouterr().out) == (2, "")
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("place", "complaint"), [("run.json", ""), ("nowhere/run.json", "the trace cannot be written")]
)
def test_variable_alone_writes_the_trace_when_the_program_ends(script, tmp_path, place, complaint):
    path = tmp_path / place
    environ = {**os.environ, "TENSORPLUG_TRACE": str(path)}

    ran = subprocess.run(
        [sys.executable, script(SCRIPT)], env=environ, capture_output=True, text=True, check=True
    )

    assert ran.stdout == "128.0\n"
    assert complaint in ran.stderr
    assert path.exists() is not bool(complaint)
