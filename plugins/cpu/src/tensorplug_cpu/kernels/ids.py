"""Row numbers that a graph computes: read, checked, made ready for indexing."""

import numpy as np

from tensorplug.errors import GraphError
from tensorplug_cpu.task import Task


class RowIds:
    """The ids of a source, read at each call into `values`, one dimension of NumPy's index type."""

    def __init__(self, task: Task, name: str, rows: int) -> None:
        self._source = task[name].array
        self._where = f"{task.node}: {name} {task.source(name)}"
        self._rows = rows
        self.values = task.scratch((self._source.size,), np.intp)
        self._shaped = self.values.reshape(self._source.shape)
        # Seen as unsigned, negative numbers are too large as well: one comparison checks both ends.
        self._unsigned = self.values.view(np.uintp)

    def __call__(self) -> None:
        """Read the ids. Raises GraphError for one that names no row."""
        self._shaped[...] = self._source
        if self.values.size and np.maximum.reduce(self._unsigned) >= self._rows:
            wrong = self.values[self._unsigned >= self._rows][0]
            raise GraphError(
                f"{self._where} holds {wrong}, which names no row; rows are 0 to {self._rows - 1}"
            )
