"""Processes of this machine, as tests see them."""

import contextlib
import time
from pathlib import Path


def descendants(pid):
    """Processes that a process started, and those that these started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in task.read_text().split():
                found += [int(child), *descendants(child)]
    return found


def wait_until(holds, seconds=180):
    """Wait until a condition holds; fail after a time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


def exists(pid):
    """True if a process runs; one whose parent has not noticed its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
