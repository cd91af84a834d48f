"""Row numbers that a graph computes: read, checked, made ready for indexing."""

import numpy as np

from tensorplug.device import Array
from tensorplug.ops.ids import NO_ROW, row_ids
from tensorplug_cpu.task import Task


class RowIds:
    """The ids of a node, read at each call into `values`, one dimension of NumPy's index type."""

    def __init__(self, task: Task) -> None:
        (self._ids,) = row_ids(task.node)
        self._source = task[self._ids.name].array
        self.values = task.scratch((self._source.size,), np.intp)
        self.named = task.scratch((self._source.size,), np.bool_)
        """Which of the ids name a row; the others are NO_ROW."""
        self.all_named = True
        self._shaped = self.values.reshape(self._source.shape)
        # As unsigned numbers, negative ones are too large as well: one comparison finds both.
        self._unsigned = self.values.view(np.uintp)

    def __call__(self) -> None:
        """Read the ids. Raises GraphError for one that is neither a row nor NO_ROW."""
        self._shaped[...] = self._source
        rows = self._ids.rows
        self.all_named = not self.values.size or bool(np.maximum.reduce(self._unsigned) < rows)
        if not self.all_named:
            self._ids.check(self._source.reshape(self._ids.ids.shape))
            np.not_equal(self.values, NO_ROW, self.named)

    def clear(self, rows: Array) -> None:
        """Write zeros to those of `rows`, one for each id, whose id is NO_ROW."""
        if not self.all_named:
            rows[~self.named] = 0
