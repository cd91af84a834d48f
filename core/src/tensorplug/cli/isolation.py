"""Probes one candidate in a process of its own, so that a crash or a hang is a row in a table."""

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

# The child looks for modules where this process does, whatever its working directory.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
_START += "from tensorplug.cli.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a device was made to do; `problem` is empty where it went well."""

    device: str
    step: str
    problem: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a candidate did in a process of its own."""

    candidate: Candidate
    devices: tuple[DeviceInfo, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing has to be repaired."""
        return not self.candidate.state.broken and not any(c.problem for c in self.checks)


def probe(candidate: Candidate, timeout: float, *, work: bool) -> Probe:
    """Load a candidate and list its devices, and with `work` use them, within `timeout` seconds.

    One that was refused already, by its metadata or a variable, is not started.
    """
    if candidate.state.refused:
        return Probe(candidate)
    with tempfile.TemporaryDirectory(prefix="tensorplug-") as folder:
        answer, errors = Path(folder, "answer"), Path(folder, "errors")
        request = {"spec": candidate.spec, "answer": str(answer), "work": work}
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
    """The exit status of the child, or None where its time was up."""
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
    """End the child and what it started."""
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
    """The whole lines of a file; one that was cut off by a crash is left out."""
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
