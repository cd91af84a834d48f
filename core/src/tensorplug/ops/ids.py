"""Ids of rows of a table: which sources of a node hold ids, and the check of their values.

An id is the number of a row, or NO_ROW. For NO_ROW a read gives zeros and a write does nothing.
Every other value is an error. `Schedule.run` checks ids that are inputs of the run and raises
GraphError before anything is written. A device that checks ids before it computes raises GraphError
too. A device that cannot raise gives NaN or zeros for a wrong id; it never reads or writes outside
the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorplug.errors import GraphError
from tensorplug.graph.tensor import Array, Tensor
from tensorplug.ops.table import OPS

NO_ROW = -1
"""The id that stands for no row."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """A source of `node` that holds ids: its name, its tensor, and the number of rows."""

    node: Tensor
    name: str
    ids: Tensor
    rows: int

    def check(self, values: Array) -> None:
        """Raise GraphError for the first of `values`, in NumPy order, that is not a valid id."""
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
        """The error for the id `value`; `where` is empty or a space and the index of the id."""
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
