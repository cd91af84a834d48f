"""`tensorplug ops`: shows the op table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorplug.ops.split import whole
from tensorplug.ops.table import OPS, Op
from tensorplug.text import table


@dataclass(frozen=True, slots=True)
class OpList:
    """A list of ops as a report."""

    ops: Sequence[Op]

    def to_json(self) -> dict[str, Any]:
        """Return the list as dictionaries, lists and strings."""
        return {"ops": [_record(op) for op in self.ops]}

    def __str__(self) -> str:
        rows = [(op.name, ", ".join(_named(s) for s in op.sources), op.formula) for op in self.ops]
        count = sum(not op.is_view for op in self.ops)
        total = f"{len(self.ops)} ops, {count} that compute and {len(self.ops) - count} views"
        return "\n".join([*table(("op", "sources", "computes"), rows), "", total])


def op_list() -> OpList:
    """Every registered op, sorted by name."""
    return OpList([OPS[name] for name in sorted(OPS)])


def _named(source: Any) -> str:
    return f"[{source.name}]" if source.optional else str(source.name)


def _record(op: Op) -> Mapping[str, Any]:
    return {
        "name": op.name,
        "sources": [
            {
                "name": source.name,
                "types": sorted(t.name for t in source.types),
                "optional": source.optional,
            }
            for source in op.sources
        ],
        "params": [
            {"name": p.name, "type": p.kind.__name__, "default": p.default, "required": p.required}
            for p in op.params
        ],
        "view": op.is_view,
        "writes": op.writes,
        "also_writes": list(op.also_writes),
        "in_place": list(op.in_place),
        "splits": op.split is not whole,
        "formula": op.formula,
        "origin": op.origin,
    }
