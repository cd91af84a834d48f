"""`SplitTable`: the state of every tensor on several devices, and why."""

from dataclasses import asdict, dataclass
from typing import Any

from tensorplug.meta.program import AllReduce, Exchange, MetaProgram, Redeal, Row
from tensorplug.text import human, table


@dataclass(frozen=True, slots=True)
class SplitTable:
    """A graph on several devices in words. `moved` is the bytes that devices receive per run."""

    device: str
    rows: tuple[Row, ...]
    moved: int
    reductions: int
    exchanges: int

    def to_json(self) -> dict[str, Any]:
        """Return the table as dictionaries, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        head = (
            f"{self.device}: {len(self.rows)} nodes, {self.reductions} sums over the devices, "
            f"{self.exchanges} other exchanges, {human(self.moved)} moved per run"
        )
        cells = [
            (r.tensor, r.op, r.shape, r.state, human(r.moved) if r.moved else "-", r.why)
            for r in self.rows
        ]
        return "\n".join([head, *table(("tensor", "op", "result", "state", "moved", "why"), cells)])


def table_of(program: MetaProgram, device: str) -> SplitTable:
    """Return the table of `program`."""
    sums = sum(isinstance(step, AllReduce) for step in program.steps)
    others = sum(isinstance(step, Exchange | Redeal) for step in program.steps)
    return SplitTable(device, tuple(program.rows.values()), program.moved, sums, others)
