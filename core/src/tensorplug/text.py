"""Words for people: plain tables, how a process ended."""

import contextlib
import signal
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with aligned columns; the last one is as wide as it likes."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    return [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        ).rstrip()
        for row in (head, *rows)
    ]


def ending(status: int) -> str:
    """How a process ended, by the exit status that Python has of it: `SIGSEGV`, `status 3`."""
    if status >= 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
