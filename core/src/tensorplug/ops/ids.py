"""Ids that number the rows of a table: which sources of a node hold them, and their check.

An id names a row, or is NO_ROW: zeros are read for it and nothing is written. Every other id is an
error. `Schedule.run` raises GraphError for ids that it is given, before anything is written, and so
does a device that looks at ids before it computes. A device that cannot raise reads and writes
nothing outside the table, and gives NaN or zeros for such an id.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorplug.errors import GraphError
from tensorplug.graph.tensor import Array, Tensor
from tensorplug.ops.table import OPS

NO_ROW = -1
"""The id that names no row."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """A source of `node` that holds ids: its name, its tensor, and how many rows there are."""

    node: Tensor
    name: str
    ids: Tensor
    rows: int

    def check(self, values: Array) -> None:
        """Raise GraphError for the first of `values`, in NumPy order, that is no id of a row."""
        if not values.size:
            return
        if values.size == 1:
            low = high = values.item()
        else:
            low, high = np.minimum.reduce(values, None), np.maximum.reduce(values, None)
        if low >= NO_ROW and high < self.rows:
            return
        at = tuple(int(i) for i in np.argwhere((values < NO_ROW) | (values >= self.rows))[0])
        raise self.error(int(values[at]), f" at {list(at)}")

    def error(self, value: int, where: str = "") -> GraphError:
        """The error for an id of `value`; `where` says at which place it is, after a blank."""
        error = GraphError(
            f"{self.node}: {self.name} {self.ids} holds {value}{where}, which names no row; rows "
            f"are 0 to {self.rows - 1}, and {NO_ROW} stands for none"
        )
        error.node = str(self.node)
        return error


def row_ids(node: Tensor) -> Iterator[RowIds]:
    """The sources of `node` that hold ids of rows."""
    op = OPS.get(node.op)
    if op is None or not op.holds_ids:
        return
    for source, ids in zip(op.sources, node.operands, strict=True):
        if source.rows_of is None or ids is None:
            continue
        name, dimension = source.rows_of
        table = node.operands[op.positions[name]] if name else node
        assert table is not None
        yield RowIds(node, source.name, ids, table.ne[dimension])
