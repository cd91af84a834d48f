"""`Values`: which batch has the last value of each input of a schedule."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorplug.errors import NotAllocated
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import Array, Tensor
from tensorplug.planning.program import Upload, Value
from tensorplug.running.batch import Batch
from tensorplug.running.failure import Attempt, written


class Values:
    """The last values of the inputs of `graph`, which runs that are not given them use again."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = graph.inputs
        self.changed = tuple(root for root in written(graph.nodes) if root.is_input)
        """Inputs that the graph writes: their last value is what the graph made of them."""
        self._kept: dict[Tensor, Array] = {}
        """Copies of the last values of inputs, if runs can be repeated."""
        self._latest: dict[Tensor, tuple[int, int]] = {}
        """For each input the number of the run that had its last value, and of its batch."""

    def forget(self) -> None:
        """The memory of batches is released: no batch has a value any more."""
        self._latest = {}

    def keep(self, attempt: Attempt) -> None:
        """Keep copies of all inputs of an attempt that may be repeated; choose what to upload."""
        context, given = attempt.context, attempt.inputs
        attempt.inputs = {**self._kept, **given}
        # An input that the graph changes has another value after the run.
        self._kept = {t: v for t, v in attempt.inputs.items() if t not in self.changed}
        context.given = {
            tensor: value
            for tensor, value in attempt.inputs.items()
            if tensor in given or not self._is_latest(tensor, context.batch)
        }

    def uploads(
        self, attempt: Attempt, batches: Sequence[Batch], to: Mapping[Tensor, Upload], run: int
    ) -> Iterator[Upload]:
        """Uploads of inputs that are given, and of those whose last value is in another batch.

        `to` are the uploads of given inputs. The new home of each value is noted after its upload.
        Raises NotAllocated for an input without a value.
        """
        context = attempt.context
        if len(context.given) < len(self.inputs):
            context.last = self._last_batches(context.given, context.batch, batches)
        for tensor in context.given:
            yield to[tensor]
            self._note(tensor, attempt, run)
        for tensor in context.last:
            yield Upload(to[tensor].stream, None, tensor, Value.LAST)
            self._note(tensor, attempt)
        for tensor in self.changed:
            self._note(tensor, attempt, run)

    def _last_batches(
        self, given: Mapping[Tensor, Any], batch: Batch, batches: Sequence[Batch]
    ) -> Mapping[Tensor, Batch]:
        """For inputs that are not given: the other batch that has the last value."""
        others = [t for t in self.inputs if t not in given]
        for tensor in others:
            if tensor not in self._latest:
                raise NotAllocated(f"{tensor}: has no value yet; give it to run()")
        found = {t: batches[self._latest[t][1]] for t in others if not self._is_latest(t, batch)}
        for tensor, last in found.items():
            if tensor in self.changed and last.lane.pending is not None:
                # The graph computes the value in that batch.
                last.lane.pending.reach()
        return found

    def _note(self, tensor: Tensor, attempt: Attempt, run: int | None = None) -> None:
        """The batch of `attempt` has the last value of an input; the value is new in run `run`."""
        batch = attempt.context.batch
        if tensor in batch.places:
            if run is not None:
                assert attempt.index is not None
                self._latest[tensor] = (run, attempt.index)
            batch.values[tensor] = self._latest[tensor][0]

    def _is_latest(self, tensor: Tensor, batch: Batch) -> bool:
        """True if `batch` has the last value of an input."""
        return tensor in self._latest and batch.values.get(tensor) == self._latest[tensor][0]
