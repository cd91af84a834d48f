"""A server process of its own, for tests."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

START = "from tensorplug_llm_console import main; main()"
PATIENCE = 120


class ServerProcess:
    """`tensorplug-llm serve` on a free port; `logs` are the lines that it wrote so far."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "serve", "--port", "0", *map(str, arguments)],
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.logs: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.url = str(self.wait_for(event="listening")["url"])
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line)
                if line.startswith("{"):
                    self.logs.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, *, after: int = 0, **fields: object) -> dict[str, Any]:
        """The first of the `logs` from number `after` with these fields; waits until it comes."""

        def found() -> dict[str, Any] | None:
            return next((log for log in self.logs[after:] if fields.items() <= log.items()), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._ended, PATIENCE)
            log = found()
        assert log is not None, "".join(self.lines)
        return log

    def processor_seconds(self, seconds: float) -> float:
        """Time that all processors together give to the server within the next `seconds`."""
        before = self._processor_time()
        time.sleep(seconds)
        return self._processor_time() - before

    def _processor_time(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        user, system = fields.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def wait_until_idle(self) -> None:
        """Wait until the server has planned all shapes of passes, which it does while idle."""
        end = time.monotonic() + PATIENCE
        while self.processor_seconds(0.5) > 0.05:
            assert time.monotonic() < end, "the server never gets idle"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self._reader.join()
        return status

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process at once, where it runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
