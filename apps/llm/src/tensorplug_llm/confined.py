"""`Confined`: runs what models and clients bring in a process of its own, under limits."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import IO, Any

from tensorplug_llm import limited

PATIENCE = 30.0
"""Seconds after which a request is stopped that sleeps instead of computing."""


class Stopped(Exception):
    """No answer came; the text says why, as the end of a sentence."""


class Confined:
    """A process that starts with the first request and answers one after the other.

    It starts again after a request that reached a limit. Can be used by several threads.
    """

    def __init__(self, program: str) -> None:
        """`program` is a file with a function `answer`, which `tensorplug_llm.limited` runs."""
        self._program = program
        self._one_at_a_time = threading.Lock()
        self._process: _Process | None = None

    def answer(self, request: Mapping[str, Any]) -> Any:
        """What `answer` returns for these values, which are plain data. Raises Stopped."""
        line = json.dumps(request)
        with self._one_at_a_time:
            process = self._process = self._process or _Process(self._program)
            try:
                answer = process.ask(line)
            except BaseException:
                # The answer comes later, and must not be that of the next request.
                self._process = None
                process.end()
                raise
            if answer.endswith("\n"):
                return json.loads(answer)
            self._process = None
            words = process.last_words()
        if words and words[-1] != "MemoryError":
            raise Stopped(f"ends the process that works on it: {words[-1]}")
        raise Stopped(f"takes more than {limited.SECONDS} s or {limited.MEMORY >> 20} MiB")


class _Process:
    def __init__(self, program: str) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by `_end`
        self._process = subprocess.Popen(
            [sys.executable, "-P", limited.__file__, program],
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
