"""`tensorplug trace`: runs a command and merges the traces of its processes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorplug.device.observing import TRACE
from tensorplug.errors import OptionError, TensorplugError
from tensorplug.inspect.trace import HOST
from tensorplug.text import ending, human, table

Event = dict[str, Any]
Times = tuple[float, float]
"""Start and end of an interval in microseconds."""
STDERR = 2


@dataclass(frozen=True, slots=True)
class Track:
    """The work of one stream, or of the host, in one process.

    `busy_ms` is milliseconds; overlapping spans count once.
    """

    process: int
    name: str
    spans: int
    busy_ms: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """The report of a traced command."""

    command: tuple[str, ...]
    status: int
    """Exit status of the command; 128 plus the signal's number if a signal ended it."""
    path: Path
    processes: int
    duration_ms: float
    """Milliseconds from the start of the first span to the end of the last."""
    side_by_side_ms: float
    """Milliseconds in which two or more streams worked in parallel."""
    copies: int
    copied_bytes: int
    dropped_spans: int
    tracks: tuple[Track, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary."""
        return {**asdict(self), "path": str(self.path)}

    def __str__(self) -> str:
        several = self.processes > 1
        rows = [
            (
                f"{track.process} {track.name}" if several else track.name,
                str(track.spans),
                f"{track.busy_ms:.1f}",
                f"{track.busy_ms / max(self.duration_ms, 1e-9):.0%}",
            )
            for track in self.tracks
        ]
        lost = f"; {self.dropped_spans} spans did not fit" if self.dropped_spans else ""
        return "\n".join(
            [
                f"{self.path}: {self.duration_ms:.1f} ms, streams in parallel for "
                f"{self.side_by_side_ms:.1f} ms; copies between devices: {self.copies}, "
                f"{human(self.copied_bytes)}{lost}",
                *table(("track", "spans", "busy ms", "share"), rows),
                "open it in ui.perfetto.dev",
            ]
        )


class NothingRecorded(TensorplugError):
    """No process of a command recorded a span; `status` is the command's exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def record(command: Sequence[str], path: Path, *, quiet: bool = False) -> Recorded:
    """Run `command` and write the merged trace of its processes to `path`.

    With `quiet`, the command's stdout goes to stderr. Raises OptionError if the command cannot
    start, NothingRecorded if no process recorded a span.
    """
    if not path.parent.is_dir():
        raise OptionError(f"trace: there is no folder {path.parent} to write into; make it")
    if path.is_dir():
        raise OptionError(f"trace: {path} is a folder; name a file in it")
    with tempfile.TemporaryDirectory(prefix="tensorplug-trace-") as folder:
        status = _run(command, folder, quiet=quiet)
        parts = _parts(Path(folder))
    if not parts:
        how = "" if status == 0 else f" and ended with {ending(status)}"
        raise NothingRecorded(
            f"trace: {command[0]} recorded nothing{how}; recorded is what a tensorplug.Scheduler "
            "without a trace of its own does, in processes that no signal ends",
            _shell_status(status),
        )
    joined = _join(parts, Path(command[0]).name)
    path.write_text(json.dumps(joined), encoding="utf-8")
    return _summary(joined, tuple(command), _shell_status(status), path)


# --- the command -------------------------------------------------------------------------------


def _run(command: Sequence[str], folder: str, *, quiet: bool) -> int:
    """Run the command to its end; return its `Popen.returncode`."""
    environ = {**os.environ, TRACE: folder}
    try:
        process = subprocess.Popen(_found(command), env=environ, stdout=STDERR if quiet else None)
    except OSError as error:
        raise OptionError(f"trace: {command[0]} cannot be run: {error}") from error
    with process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The command got SIGINT from the terminal too: wait until it ends, to trace it.
                continue


def _found(command: Sequence[str]) -> list[str]:
    """The arguments for Popen; Python scripts and modules run with this interpreter."""
    name, *arguments = command
    if name == "-m":
        return [sys.executable, "-m", *arguments]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise OptionError(f"trace: there is no file {name}")
        return [sys.executable, name, *arguments]
    # First look in this environment's scripts folder, which might not be on PATH.
    places = (sysconfig.get_path("scripts"), None)
    found = next((path for place in places if (path := shutil.which(name, path=place))), None)
    if found is None:
        raise OptionError(
            f"trace: {name} is not a command; give one that is on PATH, a .py file, or -m MODULE, "
            "after --"
        )
    return [found, *arguments]


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


# --- the trace ---------------------------------------------------------------------------------


def _parts(folder: Path) -> dict[int, Mapping[str, Any]]:
    """The trace of each process that recorded a span, by process id."""
    found = {
        int(path.stem): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    return {pid: part for pid, part in found.items() if _spans(part)}


def _spans(trace: Mapping[str, Any]) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def _join(parts: Mapping[int, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Merge the traces of several processes into one, on one clock."""
    begin = min(part["otherData"]["begin_ns"] for part in parts.values())
    events: list[Event] = []
    for i, (pid, part) in enumerate(parts.items()):
        later = (part["otherData"]["begin_ns"] - begin) / 1000
        for event in part["traceEvents"]:
            moved = {**event, "pid": pid}
            if "ts" in event:
                moved["ts"] = event["ts"] + later
            if "id" in event:
                moved["id"] = event["id"] * len(parts) + i
            if event["name"] == "process_name":
                moved["args"] = {"name": name if len(parts) == 1 else f"{name} ({pid})"}
            events.append(moved)
    dropped = sum(part["otherData"].get("dropped_spans", 0) for part in parts.values())
    facts = {"begin_ns": begin, "dropped_spans": dropped}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _summary(
    trace: Mapping[str, Any], command: tuple[str, ...], status: int, path: Path
) -> Recorded:
    spans = _spans(trace)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    by_track: dict[tuple[int, int], list[Event]] = {track: [] for track in names}
    for event in spans:
        by_track[event["pid"], event["tid"]].append(event)
    tracks = tuple(
        Track(pid, names[pid, tid], len(events), round(_total(_merged(events)) / 1000, 3))
        for (pid, tid), events in by_track.items()
    )
    streams = [_merged(by_track[track]) for track in names if names[track] != HOST]
    copies = [e["args"]["bytes"] for e in spans if e["name"].startswith("copy ")]
    duration = max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)
    return Recorded(
        command,
        status,
        path,
        len({pid for pid, _ in names}),
        round(duration / 1000, 3),
        round(_side_by_side(streams) / 1000, 3),
        len(copies),
        sum(copies),
        trace["otherData"]["dropped_spans"],
        tracks,
    )


def _merged(events: Iterable[Event]) -> list[Times]:
    """The union of the spans' intervals, sorted."""
    found: list[Times] = []
    for event in sorted(events, key=lambda e: e["ts"]):
        start, end = event["ts"], event["ts"] + event["dur"]
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _total(times: Iterable[Times]) -> float:
    return sum(end - start for start, end in times)


def _side_by_side(streams: Iterable[Iterable[Times]]) -> float:
    """Microseconds in which at least two streams worked in parallel."""
    changes = sorted(
        change for times in streams for start, end in times for change in ((start, 1), (end, -1))
    )
    total, working, since = 0.0, 0, 0.0
    for moment, change in changes:
        if working > 1:
            total += moment - since
        working, since = working + change, moment
    return total
