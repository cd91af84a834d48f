"""What a run returns: `Results`; what `submit` returns: `InFlight`."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tensorplug.device.device import Device
from tensorplug.errors import GraphError, RunFailed, StaleResult, TensorplugError
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Array, Place, Tensor
from tensorplug.planning.program import Until, Wait, reads_of
from tensorplug.running.batch import Batch
from tensorplug.running.failure import Attempt
from tensorplug.running.run import RunContext, run
from tensorplug.running.until import until_done

if TYPE_CHECKING:
    from tensorplug.running.schedule import Schedule


class Results:
    """The outputs of one run. Valid until the scheduler runs anything again.

    >>> x = tp.input("x", (4,), tp.F32)
    >>> y = x * 2
    >>> with tp.open("cpu") as cpu, tp.Scheduler([cpu]) as scheduler:
    ...     run = scheduler.schedule(y)
    ...     run.run({x: np.arange(4)})[y]
    array([0., 2., 4., 6.], dtype=float32)
    """

    def __init__(
        self, schedule: "Schedule", bindings: Bindings, serial: int, values: Mapping[Tensor, Array]
    ) -> None:
        """`values` are outputs that were read already."""
        self._schedule = schedule
        self._bindings = bindings
        self._serial = serial
        self._values = values

    def __getitem__(self, output: Tensor) -> Array:
        """Wait for `output` and copy it to the host. Raises StaleResult, GraphError, RunFailed.

        Raises SchedulerBusy where another thread uses the scheduler.
        """
        if output in self._values:
            self._check(output)
            return self._values[output]
        attempt = Attempt(self._schedule.runs, self._schedule)
        attempt.context = RunContext(
            Batch(bindings=self._bindings), begun=len(self._schedule.splits)
        )
        with attempt.runs.turn:
            # Before this thread had the turn, another could begin a run in the same memory.
            self._check(output)
            with attempt:
                return read_now(attempt, self._schedule, (output,))[output]

    def tensor(self, output: Tensor) -> Place:
        """Where `output` lies on its device, without waiting or copying."""
        self._check(output)
        return self._bindings.where(output)

    def shared(self, output: Tensor) -> Any:
        """Wait for `output`; return an array with DLPack over its memory, without a copy.

        NumPy's if the host reads the memory, and otherwise the device's (CuPy's for cuda); its
        bytes change with the next run. Raises NotAllocated where a device shares no memory; then
        `results[output]` copies. Raises StaleResult, GraphError, RunFailed.

            tensor = torch.from_dlpack(schedule.run({x: batch}).shared(y))
        """
        place = self.tensor(output)
        attempt = Attempt(self._schedule.runs, self._schedule)
        with attempt.runs.turn:
            self._check(output)
            with attempt:
                attempt.runs.wait(attempt)
        return place.buffer.shared(output, place.offset)

    def _check(self, output: Tensor) -> None:
        graph, runs = self._schedule.graph, self._schedule.runs
        if output not in graph.outputs and output not in graph.effects:
            raise GraphError(f"{output}: is not an output of {graph}; name it among the outputs")
        persistent = output.root.place is not None
        if not persistent and self._serial != runs.count:
            raise StaleResult(
                f"{output}: its memory was used by a later run of the same scheduler; read it "
                "before that"
            )
        failed = runs.failed
        if failed is not None and failed.failure is not None and failed.serial == self._serial:
            raise failed.failure


class InFlight:
    """A batch that was submitted; `result()` waits for it."""

    def __init__(self, attempt: Attempt, again: Callable[[], Mapping[Tensor, Array]]) -> None:
        """`again` runs the batch once more, after a failure."""
        self._outputs = attempt.context.outputs
        self._marks = attempt.context.marks
        self.attempt = attempt
        """The run that made it."""
        self._again = again
        self._runs = attempt.runs
        self._failure: RunFailed | None = None
        self._lane = attempt.context.batch.lane
        self._lane.pending = self
        self._runs.flying.append(self)

    @property
    def done(self) -> bool:
        """True if waiting would return at once."""
        return all(mark.done for mark in self._marks.values())

    def wait(self) -> None:
        """Block until the batch is complete; raise what its work raised.

        Raises SchedulerBusy if another thread uses the scheduler before the batch is complete.
        """
        if self._marks or (self._failure is not None and self._runs.recovery is not None):
            until_done(Attempt(self._runs), self._complete)
        self._check()

    def _complete(self, _attempt: Attempt) -> None:
        self.reach()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def reach(self) -> None:
        """Block until the batch is complete; raise the error of a device that fails now.

        The caller has the turn of the scheduler.
        """
        if not self._marks:
            return
        waits = (Wait(stream, None, Until.BATCH) for stream in self._marks)
        with self.attempt:
            fleet = self._runs.fleet
            run(waits, fleet, RunContext(marks=self._marks), fleet.calls)
        self._land()

    def _land(self, failure: RunFailed | None = None) -> None:
        self._marks, self._failure = {}, failure
        self._runs.flying.remove(self)
        self._lane.pending = None

    def run_again(self) -> None:
        """Compute the outputs by another run, unless the schedule is closed."""
        if self.attempt.schedule is None or self.attempt.schedule.closed:
            return
        self._outputs = dict(self._again())
        self._failure = None

    def forget(self) -> object:
        """Return the host memory that streams may still write."""
        return self._outputs

    def settle(self, failure: RunFailed, disturbed: Collection[Device]) -> bool:
        """End the batch after a failure; True if no `disturbed` device had a part in it.

        If one had, the outputs are unknown and reading them raises `failure` from now on.
        """
        sound = not self.attempt.uses(disturbed)
        self._land(None if sound else failure)
        return sound

    def drain(self) -> None:
        """Wait and ignore errors of the batch, whose outputs nothing will read."""
        with contextlib.suppress(TensorplugError):
            self.reach()

    def __getitem__(self, output: Tensor) -> Array:
        """Wait, and return the copy of `output` in host memory."""
        if output not in self._outputs:
            raise GraphError(f"{output}: is not an output of the submitted graph")
        self.wait()
        if self._runs.sanitizer is not None:
            self._runs.sanitizer.shows(output, self._outputs[output])
        return self._outputs[output]


def read_now(
    attempt: Attempt, schedule: "Schedule", outputs: Iterable[Tensor]
) -> Mapping[Tensor, Array]:
    """Wait for all queued work, and copy computed `outputs` to the host."""
    fleet = attempt.runs.fleet
    homes = {output: schedule.planned.homes[output] for output in outputs}
    before, after = reads_of(homes, fleet.queueing)
    run(before, fleet, attempt.context, fleet.calls)
    attempt.runs.wait(attempt)
    run(after, fleet, attempt.context, fleet.calls)
    return attempt.context.outputs
