"""`showing_progress`: how far a long task is, on stderr: a bar on a terminal, elsewhere lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import typer

from tensorplug.text import human

BAR_DELAY = 1.0
"""Seconds after which a bar appears: short tasks leave the terminal as it is."""
LINE_EVERY = 10.0
"""Seconds between lines where stderr is not a terminal."""


class Progress:
    """Call it with how much is done, of how much in all (None where that is not known)."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._start = self._shown = monotonic()
        self.is_terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._done = 0
        self._any = False

    def __call__(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` is done, unless something was shown a moment ago."""
        self._done, now = done, monotonic()
        if self.is_terminal:
            if self._bar is not None:
                self._bar.total = total
                self._bar.update(done - self._bar.n)
            elif now - self._start >= BAR_DELAY:
                self._bar, self._any = _bar(self._what, self._unit, done, total), True
        elif now - self._shown >= LINE_EVERY:
            self._shown, self._any = now, True
            share = f" ({done / total:.0%})" if total else ""
            self.say(f"{self._what}: {self._amount(done, total)}{share}, {now - self._start:.0f} s")

    def one_more(self, total: int | None) -> None:
        """Show that one more than the last time is done."""
        self(self._done + 1, total)

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            typer.echo(text, err=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def end(self) -> None:
        """Remove the bar, and say what took how long if anything was shown before."""
        self.close()
        if self._any:
            seconds = monotonic() - self._start
            self.say(f"{self._what}: {self._amount(self._done)} in {seconds:.1f} s")

    def _amount(self, done: int, total: int | None = None) -> str:
        """In words: 1.2 MiB of 3.0 MiB, 30 of 120 texts, 7 tests."""
        counts = [done] if total is None else [done, total]
        if self._unit == "B":
            return " of ".join(map(human, counts))
        return f"{' of '.join(map(str, counts))} {self._unit}"


@contextmanager
def showing_progress(what: str, unit: str) -> Iterator[Progress]:
    """The progress of a task, and a line about all of it at its end, if it is not a short one.

    `unit` is a plural, or `B` for bytes.
    """
    shown = Progress(what, unit)
    try:
        yield shown
    except BaseException:
        shown.close()
        raise
    shown.end()


def _bar(what: str, unit: str, done: int, total: int | None) -> Any:
    from tqdm import tqdm  # noqa: PLC0415 - most tasks are over before they need it

    how: dict[str, Any] = {"unit": f" {unit}"}
    if unit == "B":
        how = {"unit": unit, "unit_scale": True, "unit_divisor": 1024}
    return tqdm(desc=what, initial=done, total=total, leave=False, **how)
