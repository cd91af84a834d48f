"""Starts a command, so that signals and closed outputs end it cleanly.

This module is not in the package `tensorplug`, because importing that package takes much of a
second, and Ctrl-C during the import would end in a traceback.
"""

import atexit
import errno
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals that ask a process to end."""


def main() -> None:
    """The command `tensorplug`."""
    run("tensorplug.cli")


def run(module: str) -> None:
    """Import a module, call its `main()` and end the process.

    The exit status is that of `main()`, 128 plus the number of the signal that ended it, or 1 if
    its output could not be written. A signal raises KeyboardInterrupt, so that files and devices
    are closed. A second signal ends the process immediately.
    """
    _open_standard_files()
    ends = _Ends()
    ends.catch()
    command = import_module(module).main
    ends.begin()
    status: object = None
    try:
        command()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as end:
        status = end.code
    ends.finish()
    ends.leave(ends.status or _write_rest(status))


class _Ends:
    """Handles signals that end the process, and remembers which signal came."""

    def __init__(self) -> None:
        self.status = 0
        self._started = False
        self._outermost = False
        self._final: int | None = None

    def catch(self) -> None:
        """Handle the signals for which no handler is set and that are not ignored."""
        for number in SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._end)
                self._outermost = True
        if self._outermost:
            # Registered first, so it runs last, after threads and other exit functions have ended.
            atexit.register(self._exit)

    def begin(self) -> None:
        """Note that `main()` has started, so signals must let it close files and devices."""
        self._started = True

    def finish(self) -> None:
        """Note that all is closed: a signal need not wait for threads that were left behind."""
        self._started = False

    def leave(self, status: object) -> None:
        """End the process with the exit status of the command."""
        if isinstance(status, int) or status is None:
            self._final = status or 0
        sys.exit(status)  # type: ignore[arg-type]  # sys.exit() prints a text and exits with 1

    def _exit(self) -> None:
        """End the process before Python finalizes, because it handles no signals meanwhile."""
        if self._final is None:
            return
        for file in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                file.flush()
        os._exit(self._final & 0xFF)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.status or not self._started:
            os._exit(128 + number)
        self.status = 128 + number
        raise KeyboardInterrupt


def _open_standard_files() -> None:
    """Open closed standard files on the null device, so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, mode, closefd=False, encoding="utf-8"))


def _write_rest(status: object) -> object:
    """Flush the standard files. Return the status, or 1 if flushing fails."""
    for file in (sys.stdout, sys.stderr):
        try:
            file.flush()
        except OSError as error:
            if error.errno != errno.EPIPE and file is sys.stdout:
                sys.stderr.write(f"error: standard output: {error.strerror}\n")
            status = status or 1
        except ValueError:  # the program closed the file
            status = status or 1
    return status
