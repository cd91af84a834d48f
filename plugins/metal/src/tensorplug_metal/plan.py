"""`MetalPlan`: launches that are prepared once, and a recording of them all.

The first run encodes them one by one, in several command buffers. The second run records them, and
from then on a run encodes one command.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorplug.device import Aborted, OutOfMemory, Unsupported
from tensorplug_metal.launches import Ready, encode
from tensorplug_metal.recording import Recording
from tensorplug_simt.recording import RecordedPlan

if TYPE_CHECKING:
    from tensorplug_metal.backend import MetalBackend

FIRST = 64
"""Launches, or a tenth of them, that the GPU gets before the rest is encoded."""
TOGETHER = 64
"""Launches in a command buffer where a run may be aborted: it stops between two of these."""


class MetalPlan(RecordedPlan):
    """Encodes its launches, then records them, then executes the recording."""

    backend: "MetalBackend"
    fewest = 8
    refusals = (Unsupported, OutOfMemory)

    @property
    def barriers(self) -> int:
        """How many launches wait for all earlier ones."""
        return sum(launch.waits for launch in self._ready)

    def _run(self) -> None:
        self.backend.work.check()
        with self.backend.capturing():
            super()._run()

    def _run_once(self) -> None:
        backend = self.backend
        if backend.profile:
            # A command buffer for each launch tells when it ran.
            for launch in self._ready:
                backend.enqueue([launch], launch.name)
        elif backend.abort_callback is not None:
            self._run_until_aborted()
        else:
            for part in portions(self._ready, backend.command_buffers):
                backend.enqueue(part)

    def _run_until_aborted(self) -> None:
        """Queue some launches at a time, while no more than two command buffers are unfinished."""
        work, unfinished = self.backend.work, list[Any]()
        for first in range(0, len(self._ready), TOGETHER):
            stop = self.backend.abort_callback
            if stop is not None and stop():
                raise Aborted(f"{self.backend.name}: stopped after {first} launches")
            with work.commands("graph") as commands, work.compute(commands) as encoder:
                encode(encoder, self._ready[first : first + TOGETHER])
            unfinished.append(commands)
            if len(unfinished) > 1:
                self.backend.signals.settle()
                unfinished.pop(0).waitUntilCompleted()

    @property
    def _may_be_recorded(self) -> bool:
        backend = self.backend
        return backend.indirect and not backend.profile and backend.abort_callback is None

    def _record(self) -> Recording:
        return Recording(self.backend.device, self._ready)

    def _repeat(self, recording: Recording) -> None:
        work = self.backend.work
        with work.commands("recorded graph") as commands, work.compute(commands) as encoder:
            recording.encode(encoder)


def portions(launches: Sequence[Ready], count: int) -> list[Sequence[Ready]]:
    """Launches for `count` command buffers and one before them, which the GPU gets at once."""
    first = max(FIRST, len(launches) // 10)
    rest = launches[first:]
    size = max(-(-len(rest) // count), 1)
    return [launches[:first], *(rest[start : start + size] for start in range(0, len(rest), size))]
