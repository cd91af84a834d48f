"""Probes one candidate in a child process, so that a crash or a hang only fails the candidate."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorplug.device.device import Capabilities, DeviceInfo, DeviceType
from tensorplug.registry.candidate import Candidate, State
from tensorplug.text import ending

# The child gets this process's `sys.path`, so both import the same modules.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
_START += "from tensorplug.cli.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Check:
    """One step that a device was asked to do; `problem` is empty if the step succeeded."""

    device: str
    step: str
    problem: str


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of probing a candidate in a child process."""

    candidate: Candidate
    devices: tuple[DeviceInfo, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if the candidate is not broken and every check succeeded."""
        return not self.candidate.state.broken and not any(c.problem for c in self.checks)


def probe(candidate: Candidate, timeout: float, *, work: bool, device: str | None = None) -> Probe:
    """Load a candidate in a child process and list its devices, within `timeout` seconds.

    With `work`, the child also runs the checks on each device, or only on `device`. A candidate
    that metadata or a variable refuses is not started.
    """
    if candidate.state.refused:
        return Probe(candidate)
    with tempfile.TemporaryDirectory(prefix="tensorplug-") as folder:
        answer, errors = Path(folder, "answer"), Path(folder, "errors")
        request = {"spec": candidate.spec, "answer": str(answer), "work": work, "device": device}
        status = _run([json.dumps(sys.path), json.dumps(request)], errors, timeout)
        lines = [json.loads(line) for line in _lines(answer)]
        if not any("done" in line for line in lines):
            return Probe(_lost(candidate, status, timeout, lines, _lines(errors)))
    told = next(line["candidate"] for line in lines if "candidate" in line)
    return Probe(
        replace(
            candidate,
            state=State(told["state"]),
            reason=told["reason"],
            score=told["score"],
            probe_ms=told["probe_ms"],
        ),
        tuple(_device(line["device"]) for line in lines if "device" in line),
        tuple(Check(*line["check"]) for line in lines if "check" in line),
    )


def _run(arguments: list[str], errors: Path, timeout: float) -> int | None:
    """Run the child; return its exit status, or None if it exceeded `timeout` seconds."""
    with (
        errors.open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        ) as child,
    ):
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(child)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill the child and its process group."""
    if child.poll() is None and os.name == "nt":
        child.kill()
    elif os.name != "nt":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _lost(
    candidate: Candidate,
    status: int | None,
    timeout: float,
    lines: list[dict[str, Any]],
    errors: list[str],
) -> Candidate:
    steps = [line["step"] for line in lines if "step" in line]
    during = steps[-1] if steps else "it was started"
    remedy = f"upgrade or uninstall {candidate.project}, or set TENSORPLUG_DISABLE={candidate.name}"
    if status is None:
        return candidate.refuse(
            State.FAILED, f"it hangs: {timeout:g} s were up while {during}; {remedy}"
        )
    words = f"; its last words: {errors[-1]}" if errors else ""
    return candidate.refuse(
        State.FAILED, f"it ends its process with {ending(status)} while {during}; {remedy}{words}"
    )


def _lines(file: Path) -> list[str]:
    """The complete lines of a file; a last line without a newline (a crash) is dropped."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _device(facts: dict[str, Any]) -> DeviceInfo:
    return DeviceInfo(
        **{
            **facts,
            "type": DeviceType(facts["type"]),
            "capabilities": Capabilities(**facts["capabilities"]),
        }
    )
