"""`Candidate`: one backend that some distribution offers: how far it got, and why no further."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.spec import canonical
from tensorplug.text import one_line

MOST_WORDS = 2000
"""Characters of an exception's text that are shown."""


class State(enum.Enum):
    """How far a candidate got."""

    FOUND = "found"
    """Seen in the metadata, not imported yet."""
    DISABLED = "disabled"
    """Switched off by a variable or by the program."""
    INCOMPATIBLE = "incompatible"
    """Made for another version of tensorplug."""
    UNSUPPORTED = "unsupported"
    """It says that it cannot run on this machine."""
    FAILED = "failed"
    """It is broken."""
    SUPERSEDED = "superseded"
    """It works, and another distribution offers the same backend with a better score."""
    AVAILABLE = "available"
    """It works as far as can be told without drivers."""
    READY = "ready"
    """Its devices are known."""

    @property
    def refused(self) -> bool:
        """Whether the candidate cannot be opened."""
        return self in _REFUSED

    @property
    def broken(self) -> bool:
        """Whether somebody has to repair something."""
        return self in (State.FAILED, State.INCOMPATIBLE)


_REFUSED = (State.DISABLED, State.INCOMPATIBLE, State.UNSUPPORTED, State.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One backend that a distribution offers."""

    name: str
    """The entry point's: the one name in variables, device strings and reports."""
    distribution: str
    """Name and version: `tensorplug-cpu 0.3.0`."""
    value: str = ""
    """Where the plugin is: `tensorplug_cpu.plugin`."""
    state: State = State.FOUND
    reason: str = ""
    """A sentence with the remedy; empty while nothing is wrong."""
    error: BaseException | None = field(default=None, repr=False)
    """What was caught; chained when somebody asks for the backend by name."""
    score: int = 0
    probe_ms: float = 0.0
    """Time spent in the plugin so far."""
    rank: int = 0
    """Place in TENSORPLUG_BACKENDS."""
    folder: str = ""
    """The folder its modules must come from, where it was loaded from a path."""

    @property
    def project(self) -> str:
        """Name of the distribution in its one spelling."""
        return canonical(self.distribution.partition(" ")[0])

    @property
    def spec(self) -> str:
        """The device string that means this candidate and no other."""
        return f"{self.name}@{self.project}"

    @property
    def key(self) -> tuple[str, str]:
        """What tells candidates apart."""
        return (self.name.lower(), self.project)

    def refuse(self, state: State, reason: str, error: BaseException | None = None) -> "Candidate":
        """The same candidate, stopped here."""
        return replace(self, state=state, reason=reason, error=error)

    def supersede(self, best: "Candidate") -> "Candidate":
        """The same candidate, usable but behind `best`."""
        reason = (
            f"{best.distribution} comes first with score {best.score}; open this one as {self.spec}"
        )
        return replace(self, state=State.SUPERSEDED, reason=reason)

    @property
    def order(self) -> tuple[int, int, str, str]:
        """The best of one name first: by TENSORPLUG_BACKENDS, score, distribution."""
        return (self.rank, -self.score, self.project, self.folder)

    def __str__(self) -> str:
        verb = "failed" if self.state is State.FAILED else f"is {self.state.value}"
        return f"{self.distribution} {verb}: {self.reason}" if self.reason else self.distribution

    def to_json(self) -> dict[str, object]:
        """What a report says about it, as plain data."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "value": self.value,
            "state": self.state.value,
            "reason": self.reason,
            "error": describe(self.error) if self.error is not None else None,
            "score": self.score,
            "probe_ms": round(self.probe_ms, 3),
        }


def describe(error: BaseException) -> str:
    """An exception on one line: `ValueError: no such thing`.

    Exceptions of plugins may raise when they are asked for their text, and may hold any text.
    """
    name = _words(lambda: type(error).__name__) or "an exception without a name"
    text = _words(lambda: str(error))
    if text is None:
        return f"{name}, whose text cannot be read"
    return f"{name}: {text}" if text else name


def show(value: object) -> str:
    """The repr of something that a plugin gave, on one line; it may raise when it is asked."""
    return _words(lambda: repr(value)) or "something whose repr cannot be read"


def _words(text: Callable[[], str]) -> str | None:
    words = attempt(lambda: one_line(text()))
    if isinstance(words, Failure):
        return None
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}..."
