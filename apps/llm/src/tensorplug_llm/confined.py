"""`Renderer`: renders chat templates in a process of its own, under limits of time and memory."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import IO

from tensorplug.errors import FormatError
from tensorplug_llm import rendering

PATIENCE = 30.0
"""Seconds after which a template is stopped that sleeps instead of computing."""


class Renderer:
    """A process that starts with the first request and answers one after the other.

    It starts again after a template that reached a limit. Can be used by several threads.
    """

    def __init__(self, key: str) -> None:
        """`key` names templates in errors."""
        self._key = key
        self._one_at_a_time = threading.Lock()
        self._process: _Process | None = None

    def answer(self, request: str) -> str:
        """The answer of `rendering.answer` to a request, both as JSON. Raises FormatError."""
        with self._one_at_a_time:
            process = self._process = self._process or _Process()
            try:
                answer = process.ask(request)
            except BaseException:
                # The answer comes later, and must not be that of the next request.
                self._process = None
                process.end()
                raise
            if answer.endswith("\n"):
                return answer
            self._process = None
            words = process.last_words()
        if words and words[-1] != "MemoryError":
            raise FormatError(f"{self._key}: the process that renders it failed: {words[-1]}")
        limits = f"{rendering.SECONDS} s or {rendering.MEMORY >> 20} MiB"
        raise FormatError(
            f"{self._key}: takes more than {limits} on these messages; the model's template is "
            "broken or malicious, so give a plain prompt"
        )


class _Process:
    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by `_end`
        self._process = subprocess.Popen(
            [sys.executable, "-P", rendering.__file__],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONIOENCODING": "utf-8",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
        )
        self.end = weakref.finalize(self, _end, self._process, self._errors)
        """Ends it, if it has not ended."""

    def ask(self, request: str) -> str:
        """A line that answers a line; without its end where the process ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        waiting = threading.Timer(PATIENCE, self._process.kill)
        waiting.start()
        try:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            waiting.cancel()

    def last_words(self) -> list[str]:
        """The lines of its errors, after its end."""
        self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().splitlines()
        self.end()
        return words


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
