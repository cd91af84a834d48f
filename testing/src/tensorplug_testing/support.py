"""What a device supports: ops and types, and the reasons of refusals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tensorplug.device import Device
from tensorplug.errors import DeviceError
from tensorplug.ops.table import OPS, Op
from tensorplug.text import table
from tensorplug_testing.cases import Case
from tensorplug_testing.check import located, refusal
from tensorplug_testing.run import as_csv

FEW = 4
"""How many partly supported types a cell of the table names."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A device's answer about one case; `reason` is empty if the case is supported."""

    case: str
    op: str
    types: str
    supported: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a dictionary."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Support:
    """The answers of one device about the cases of the kit."""

    device: str
    answers: tuple[Answer, ...]

    def cell(self, op: str) -> str:
        """The supported types of the first source of `op`, partly supported ones in parentheses.

        More than FEW types that are partly supported are counted, not named.
        """
        of_type: dict[str, list[bool]] = {}
        for answer in self.answers:
            if answer.op == op:
                of_type.setdefault(answer.types.partition(",")[0], []).append(answer.supported)
        whole = [name for name, yes in of_type.items() if all(yes)]
        part = [f"({name})" for name, yes in of_type.items() if any(yes) and not all(yes)]
        if len(part) > FEW:
            part = [f"({len(part)} more)"]
        none = [name for name, yes in of_type.items() if not any(yes)]
        if len(whole) == len(of_type):
            return "all" if whole else ""
        if len(whole) > len(part) + len(none):
            return " ".join(["all but", *none, *part])
        return " ".join([*whole, *part])

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary with a summary, and one record for each case."""
        yes = sum(answer.supported for answer in self.answers)
        ops = len({answer.op for answer in self.answers if answer.supported})
        refused = len(self.answers) - yes
        summary = {"device": self.device, "supported": yes, "refused": refused, "ops": ops}
        return {"summary": summary, "records": [answer.to_json() for answer in self.answers]}

    def to_csv(self) -> str:
        """One line for each case."""
        return as_csv([f.name for f in fields(Answer)], [a.to_json() for a in self.answers])

    def __str__(self) -> str:
        ops = dict.fromkeys(answer.op for answer in self.answers)
        return "\n".join(table(("op", self.device), [(op, self.cell(op) or "-") for op in ops]))


def ask(device: Device, cases: Iterable[Case]) -> Support:
    """Ask `device` whether it supports each case, without computing anything."""
    answers = []
    for case in cases:
        reason = _asked(case, device)
        answers.append(Answer(case.id, case.op, ",".join(case.types), not reason, reason))
    return Support(device.name, tuple(answers))


def _asked(case: Case, device: Device) -> str:
    try:
        return refusal(case, device)
    except Exception as error:
        raise DeviceError(
            f"{device.name}: refuses() has no answer to {case.id}: {located(error)}"
        ) from error


def as_markdown(supports: Sequence[Support]) -> str:
    """A Markdown table of ops, with the supported types of each device, for `docs/ops.md`."""
    names = [support.device.partition(":")[0] for support in supports]
    head = ["op", "computes", "types", *names]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for op in OPS.values():
        if op.is_view:
            cells = ["any", *("view" for _ in supports)]
        else:
            cells = [_types(op), *(support.cell(op.name) or "-" for support in supports)]
        formula = op.formula.replace("|", "\\|")
        lines.append(f"| `{op.name}` | `{formula}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _types(op: Op) -> str:
    """The types of the first source; block types are only counted."""
    if not op.sources:
        return "none"
    types = sorted(op.sources[0].types, key=lambda dtype: dtype.id)
    plain = [dtype.name for dtype in types if not dtype.is_block]
    blocks = sum(dtype.is_block for dtype in types)
    return " ".join([*plain, *([f"and {blocks} block types"] if blocks else [])])
