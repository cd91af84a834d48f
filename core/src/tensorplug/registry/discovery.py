"""Discovery: reads the entry points of installed distributions, without importing them."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from importlib_metadata import (
    EntryPoint,
    PackageNotFoundError,
    distributions,
    version,
)
from packaging.requirements import InvalidRequirement, Requirement

from tensorplug.registry.candidate import Candidate, State, describe
from tensorplug.registry.guard import Failure, attempt
from tensorplug.registry.spec import canonical, is_backend_name

GROUP = "tensorplug.backends"
OPS_GROUP = "tensorplug.ops"
CORE = "tensorplug"


class Installed(Protocol):
    """The part of a distribution's metadata that is read."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def requires(self) -> list[str] | None: ...
    @property
    def entry_points(self) -> Iterable[EntryPoint]: ...
    def locate_file(self, path: str, /) -> Any: ...


_PROJECT = re.compile(r"\s*([A-Za-z0-9._-]*[A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry point that is not a backend: a module that registers ops, or a command."""

    distribution: str
    """Name and version: `tensorplug-cpu 0.3.0`."""
    entry: EntryPoint

    @property
    def project(self) -> str:
        """The canonical name of the distribution: `tensorplug-testing`."""
        return canonical(self.distribution.partition(" ")[0])


def discover(path: Sequence[str] | None = None, ops: list[Offer] | None = None) -> list[Candidate]:
    """Return a candidate for every backend that distributions on `path` offer.

    `path` is `sys.path` by default. A distribution with damaged metadata gives a candidate without
    a name. Modules that register ops are appended to `ops`. Distributions are read one by one,
    because one malformed file anywhere on the path makes a look-up over all of them raise.
    """
    found: dict[tuple[str, str], Candidate] = {}
    damaged: list[Candidate] = []
    first: dict[str, Installed] = {}
    for distribution in distributions(path=list(sys.path if path is None else path)):
        for candidate in _offers(distribution, [] if ops is None else ops):
            if not candidate.name:
                damaged.append(candidate)
            # If a distribution is on the path twice, Python imports the first.
            elif first.setdefault(candidate.project, distribution) is distribution:
                found.setdefault(candidate.key, candidate)
    return [*found.values(), *damaged]


def discover_in(folder: str, ops: list[Offer] | None = None) -> list[Candidate]:
    """Like `discover`, for one folder; modules of these candidates must come from the folder."""
    return [replace(candidate, folder=folder) for candidate in discover([folder], ops)]


def offers(group: str, path: Sequence[str] | None = None) -> list[Offer]:
    """The entry points of `group`, sorted by name, then by distribution.

    Distributions with damaged metadata are skipped; `discover` reports them.
    """
    found: dict[tuple[str, str], Offer] = {}
    for distribution in distributions(path=list(sys.path if path is None else path)):
        entries = attempt(lambda d=distribution: _offers_of(d, group))  # type: ignore[misc]
        for offer in [] if isinstance(entries, Failure) else entries:
            found.setdefault((offer.entry.name, offer.project), offer)
    return [found[key] for key in sorted(found)]


def _offers_of(distribution: Installed, group: str) -> list[Offer]:
    entries = [entry for entry in distribution.entry_points if entry.group == group]
    return [Offer(_label(distribution), entry) for entry in entries]


def _offers(distribution: Installed, ops: list[Offer]) -> Iterator[Candidate]:
    try:
        offered = [e for e in distribution.entry_points if e.group in (GROUP, OPS_GROUP)]
        entries = [e for e in offered if e.group == GROUP]
        # Read only if needed: names and requirements take far longer to read than entry points.
        label = _label(distribution) if offered else ""
        needs = (distribution.requires or []) if entries else []
        ops += [Offer(label, e) for e in offered if e.group == OPS_GROUP]
    except Exception as error:  # noqa: BLE001 - other people's files: anything may be wrong in them
        yield _damaged(distribution, error)
        return
    for entry in entries:
        found = _check_entry(entry, label)
        yield _check_version(found, needs) if found.state is State.FOUND else found


def _check_entry(entry: EntryPoint, label: str) -> Candidate:
    found = Candidate(name=entry.name, distribution=label, value=entry.value)
    if not is_backend_name(entry.name):
        return found.refuse(
            State.FAILED,
            f"the name {entry.name!r} cannot stand in a device string; its author must rename it",
        )
    if not EntryPoint.pattern.match(entry.value):
        return found.refuse(
            State.FAILED,
            f"its entry point {entry.value!r} names no module; its author must correct it",
        )
    return found


def _check_version(found: Candidate, needs: Sequence[str]) -> Candidate:
    ours = _our_version()
    for line in needs:
        named = _PROJECT.match(line)
        if not ours or named is None or canonical(named[1]) != CORE:
            continue
        try:
            wanted = Requirement(line)
        except InvalidRequirement as error:
            return found.refuse(
                State.FAILED,
                f"its requirement {line!r} cannot be read; its author must correct it",
                error,
            )
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if not wanted.specifier.contains(ours, prereleases=True):
            return found.refuse(
                State.INCOMPATIBLE,
                f"it needs {CORE}{wanted.specifier} and this is {CORE} {ours}; "
                f"pip install --upgrade {CORE} {found.project}",
            )
    return found


def _our_version() -> str:
    try:
        return version(CORE)
    except PackageNotFoundError:  # a source tree on the path, nothing installed
        return ""


def _label(distribution: Installed) -> str:
    return f"{distribution.name} {distribution.version}"


def _damaged(distribution: Installed, error: Exception) -> Candidate:
    try:
        label = _label(distribution)
    except Exception:  # noqa: BLE001 - the name itself is what is damaged
        folder = Path(str(distribution)).name
        label = folder if folder.endswith("-info") else "unknown"
    return Candidate(
        name="",
        distribution=label,
        state=State.FAILED,
        reason=f"its metadata in {distribution.locate_file('')} cannot be read, "
        f"{describe(error)}; reinstall or remove it",
        error=error,
    )
