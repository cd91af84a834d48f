"""`Report`: every candidate with its state, as text and as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorplug.registry.candidate import Candidate
from tensorplug.registry.spec import HINTS
from tensorplug.text import table


@dataclass(frozen=True, slots=True)
class Report:
    """The candidates of a registry and their states."""

    candidates: tuple[Candidate, ...]
    """All candidates, the best first."""
    variables: Mapping[str, str | None]
    """The environment variables as this process sees them; None for a variable that is not set."""
    complaints: tuple[str, ...] = ()
    """Sentences about names in the variables that match no candidate."""
    notes: tuple[str, ...] = ()
    """Events since the start, such as one candidate taking over from another."""

    @property
    def healthy(self) -> bool:
        """True if at least one backend is usable, none is broken, and there are no complaints."""
        usable = any(not c.state.refused for c in self.candidates)
        return usable and not self.complaints and not any(c.state.broken for c in self.candidates)

    @property
    def advice(self) -> str:
        """What the user can do if no backend is usable; empty if one is usable."""
        if any(not c.state.refused for c in self.candidates):
            return ""
        what = "can be used" if self.candidates else "is installed"
        return f"no backend {what}; {HINTS['cpu']} gives one that runs everywhere"

    def to_json(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists and strings."""
        return {
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "variables": dict(self.variables),
            "complaints": list(self.complaints),
            "notes": list(self.notes),
            "advice": self.advice,
        }

    def __str__(self) -> str:
        head = ("backend", "distribution", "state", "score", "ms", "reason")
        rows = [
            (
                c.name or "-",
                c.distribution,
                c.state.value,
                str(c.score or "-"),
                f"{c.probe_ms:.0f}",
                c.reason,
            )
            for c in self.candidates
        ]
        lines = table(head, rows) if rows else []
        lines += [f"note: {note}" for note in (*self.complaints, *self.notes)]
        lines += [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        return "\n".join([*lines, self.advice] if self.advice else lines)
