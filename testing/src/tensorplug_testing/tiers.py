"""Tiers: which cases a run takes, from a quick selection to all."""

import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence

from tensorplug.errors import OptionError
from tensorplug.ops.table import OPS
from tensorplug.registry.spec import did_you_mean
from tensorplug_testing.cases import CASES, Case

TIERS = ("smoke", "ci", "full")
ROTATION = 10
"""Tier `ci` runs the first case of each kind and one in ROTATION others, chosen by the seed."""


def select(
    tier: str = "full",
    *,
    seed: int = 0,
    ops: Sequence[str] = (),
    pattern: str = "",
    cases: Iterable[Case] | None = None,
) -> list[Case]:
    """The cases of a tier, of the ops `ops`, whose ids match `pattern`. Raises OptionError.

    `smoke` has one case for each op and type of its first source, and one of each kind; `ci` one
    for each op, kind, types and layouts, those that are marked with `always`, and a rotating tenth
    of the others; `full` has all.
    """
    if tier not in TIERS:
        raise OptionError(f"tier {tier!r} is unknown; tiers are {', '.join(TIERS)}")
    wanted = all_cases() if cases is None else list(cases)
    if ops:
        _check_ops(ops, {case.op for case in wanted})
        wanted = [case for case in wanted if case.op in ops]
    if pattern:
        try:
            found = re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"pattern {pattern!r} is not a regular expression: {error}"
            ) from error
        wanted = [case for case in wanted if found.search(case.id)]
    return _TIERS[tier](wanted, seed)


def _check_ops(ops: Iterable[str], known: set[str]) -> None:
    """Raise OptionError with a remedy for the first op that has no cases."""
    strange = next((name for name in ops if name not in known), None)
    if strange is None:
        return
    if strange not in OPS:
        longer = [name for name in sorted(sorted(known), key=len) if strange.lower() in name]
        hint = did_you_mean(strange, known) or "`tensorplug ops` lists the ops"
        remedy = f"did you mean {longer[0]!r}?" if longer else hint
    elif OPS[strange].is_view:
        remedy = "it is a view and computes nothing; other ops are tested on views"
    else:
        remedy = f"here are those of {', '.join(sorted(known))}"
    raise OptionError(f"no case of op {strange!r}; {remedy}")


def all_cases() -> list[Case]:
    """The cases of the kit, and the cases of ops that other distributions register."""
    brought = [op.cases() for op in OPS.values() if op.cases is not None]
    return [*CASES, *(case for cases in brought for case in cases)]


def _smoke(cases: Sequence[Case], _seed: int) -> list[Case]:
    return _firsts(cases, lambda case: (case.op, case.kind or case.types[:1]))


def _slice(cases: Sequence[Case], seed: int) -> list[Case]:
    firsts = set(
        map(id, _firsts(cases, lambda case: (case.op, case.kind, case.types, case.layouts)))
    )
    return [c for c in cases if c.always or id(c) in firsts or _turn(c) == seed % ROTATION]


def _full(cases: Sequence[Case], _seed: int) -> list[Case]:
    return list(cases)


def _firsts(cases: Iterable[Case], kind: Callable[[Case], Hashable]) -> list[Case]:
    found: dict[Hashable, Case] = {}
    for case in cases:
        found.setdefault(kind(case), case)
    return list(found.values())


def _turn(case: Case) -> int:
    return zlib.crc32(case.id.encode()) % ROTATION


_TIERS = {"smoke": _smoke, "ci": _slice, "full": _full}
