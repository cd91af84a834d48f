"""`MetalPlan`: launches that are prepared once, and a recording of them all.

The first run encodes them one by one, in one or several command buffers. The second run records
them, and from then on a run encodes one command. A plan that is bound anew starts again, so one
that runs once for each binding is never recorded.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import objc

from tensorplug.device import Aborted, OutOfMemory, Part, Unsupported
from tensorplug_metal.launches import Ready, encode
from tensorplug_metal.recording import Recording
from tensorplug_simt.merging import Placed
from tensorplug_simt.plan import SimtPlan

if TYPE_CHECKING:
    from tensorplug_metal.backend import MetalBackend

FEWEST = 8
"""Launches that are worth a recording."""
FIRST = 64
"""Launches, or a tenth of them, that the GPU gets before the rest is encoded."""
TOGETHER = 64
"""Launches in a command buffer where somebody may stop the run between two."""


class MetalPlan(SimtPlan):
    """Encodes its launches, then records them, then executes the recording."""

    backend: "MetalBackend"

    def __init__(self, backend: "MetalBackend", bound: Part) -> None:
        self._recording: Recording | None = None
        self.refusal = ""
        """Why the launches cannot be recorded; empty as long as they may be."""
        super().__init__(backend, bound)

    @property
    def recorded(self) -> bool:
        """Whether a run encodes one command."""
        return self._recording is not None

    @property
    def launches(self) -> int:
        """How many launches a run has."""
        return len(self._ready)

    @property
    def barriers(self) -> int:
        """How many launches wait for all earlier ones."""
        return sum(launch.waits for launch in self._ready)

    def _bind(self, launches: Sequence[tuple[Placed, ...]]) -> None:
        self._drop_recording()
        super()._bind(launches)
        self._ran = False

    def _run(self) -> None:
        backend = self.backend
        backend.work.check()
        with backend.capturing():
            if backend.profile:
                self._time()
            elif backend.abort_callback is not None:
                self._run_until_aborted()
            elif self._ran and (self._recording is not None or self._record()):
                self._execute()
            else:
                self._encode(portions(self._ready, backend.command_buffers))
        self._ran = True

    # --- encoding --------------------------------------------------------------------------

    def _encode(self, parts: Sequence[Sequence[Ready]]) -> None:
        """Queue parts as command buffers, in order; all but the first are encoded by threads."""
        work = self.backend.work
        if len(parts) == 1:
            self.backend.enqueue(parts[0])
            return
        with objc.autorelease_pool():
            made = [work.new(f"graph, part {i + 1} of {len(parts)}") for i in range(len(parts))]
            for commands in made:
                # Their order is that of this call, whichever is committed first.
                commands.enqueue()
            try:
                with ThreadPoolExecutor(len(parts) - 1) as threads:
                    rest = [
                        threads.submit(self._encode_part, commands, part)
                        for commands, part in zip(made[1:], parts[1:], strict=True)
                    ]
                    self._encode_part(made[0], parts[0])
            finally:
                for commands in made:
                    work.remember(commands)
            for each in rest:
                each.result()

    def _encode_part(self, commands: Any, part: Sequence[Ready]) -> None:
        try:
            with objc.autorelease_pool(), self.backend.work.compute(commands) as encoder:
                encode(encoder, part)
        finally:
            # One that is enqueued and never committed would stop the queue for good.
            commands.commit()

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
                unfinished.pop(0).waitUntilCompleted()

    def _time(self) -> None:
        """Queue each launch as a command buffer, which tells when it ran."""
        for launch in self._ready:
            self.backend.enqueue([launch], launch.name)

    # --- recording -------------------------------------------------------------------------

    def _record(self) -> bool:
        """Make a recording, once; whether there is one."""
        if self.refusal or not self.backend.indirect or len(self._ready) < FEWEST:
            return False
        try:
            self._recording = Recording(self.backend.device, self._ready)
        except (Unsupported, OutOfMemory) as error:
            self.refusal = str(error)
            return False
        return True

    def _execute(self) -> None:
        assert self._recording is not None
        work = self.backend.work
        with work.commands("recorded graph") as commands, work.compute(commands) as encoder:
            self._recording.encode(encoder)

    def _drop_recording(self) -> None:
        if self._recording is not None:
            # What is executed may not go.
            self.backend.drain()
            self._recording = None

    def _close(self) -> None:
        super()._close()
        self._recording = None


def portions(launches: Sequence[Ready], count: int) -> list[Sequence[Ready]]:
    """Launches for `count` command buffers and one before them, which the GPU gets at once."""
    first = max(FIRST, len(launches) // 10)
    rest = launches[first:]
    size = max(-(-len(rest) // count), 1)
    return [
        launches[:first],
        *(rest[start : start + size] for start in range(0, len(rest), size)),
    ]
