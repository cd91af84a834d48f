"""Text for people: tables, counts, sizes, escapes of control characters, exit statuses in words."""

import contextlib
import re
import signal
from collections.abc import Sequence

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing: controls other than newline and tab, and
bidirectional marks. Lone surrogates are included because they cannot be encoded as UTF-8."""


def printable(text: str) -> str:
    """`text` with control characters as escapes, such as `\\x1b`; newlines and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`printable(text)` with each run of white space replaced by one space."""
    return printable(" ".join(text.split()))


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human(size: int) -> str:
    """Format a size in bytes for people: `278.0 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns; the last column is not padded.

    Cells may come from files and plugins, so control characters in cells become escapes.
    """
    rows = [[printable(cell.replace("\n", " ")) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    return [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        ).rstrip()
        for row in (head, *rows)
    ]


def ending(status: int) -> str:
    """The name of a `Popen.returncode`: `status 3` for an exit, `SIGSEGV` for a signal."""
    if status >= 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
