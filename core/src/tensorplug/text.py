"""Words for people: plain tables, text a terminal does not obey, how a process ended."""

import contextlib
import re
import signal
from collections.abc import Sequence

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it: controls, except newline and tab, and marks that
reverse the order of text. Lone surrogates cannot be written at all."""


def printable(text: str) -> str:
    """`text` with control characters as escapes, such as `\\x1b`; newlines and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`printable` text in which every run of white space is one space."""
    return printable(" ".join(text.split()))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with aligned columns; the last one is as wide as it likes.

    Cells may come from files and plugins: control characters in them become escapes.
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
    """How a process ended, by the exit status that Python has of it: `SIGSEGV`, `status 3`."""
    if status >= 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
