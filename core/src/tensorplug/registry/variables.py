"""Environment variables that choose backends: an ordered allow-list, and a block-list."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tensorplug.registry.candidate import Candidate, State
from tensorplug.registry.spec import canonical, did_you_mean

BACKENDS = "TENSORPLUG_BACKENDS"
DISABLE = "TENSORPLUG_DISABLE"


@dataclass(frozen=True, slots=True)
class Variables:
    """The values: comma-separated backend names, or `name@distribution` for one variant."""

    backends: str | None = None
    disable: str | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Variables":
        """Read the variables from `environ`."""
        return cls(environ.get(BACKENDS), environ.get(DISABLE))

    @property
    def seen(self) -> dict[str, str | None]:
        """The values as this process sees them; None for a variable that is not set."""
        return {BACKENDS: self.backends, DISABLE: self.disable}

    def allow(self, found: Candidate) -> Candidate:
        """Return the candidate with its rank, or disabled by one of the variables."""
        if blocked := next((n for n in _names(self.disable) if _means(n, found)), None):
            return found.refuse(
                State.DISABLED, f"{DISABLE} names {blocked}; take it out to use the backend"
            )
        allowed = _names(self.backends)
        rank = next((i for i, name in enumerate(allowed) if _means(name, found)), None)
        if allowed and rank is None:
            return found.refuse(
                State.DISABLED,
                f"{BACKENDS}={self.backends} leaves it out; add {found.name} to use the backend",
            )
        return replace(found, rank=rank or 0)

    def complaints(self, found: Iterable[Candidate]) -> list[str]:
        """A sentence for each name in the variables that matches no candidate."""
        candidates = [c for c in found if c.name]
        known = {c.name for c in candidates} | {c.spec for c in candidates}
        return [
            f"{variable} names {name!r}, which is not installed; "
            + (did_you_mean(name, known) or f"installed: {', '.join(sorted(known)) or 'nothing'}")
            for variable, value in self.seen.items()
            for name in _names(value)
            if not any(_means(name, candidate) for candidate in candidates)
        ]


def _names(value: str | None) -> list[str]:
    return [name for part in (value or "").split(",") if (name := part.strip().lower())]


def _means(name: str, found: Candidate) -> bool:
    backend, at, distribution = name.partition("@")
    return found.name.lower() == backend and (not at or canonical(distribution) == found.project)
