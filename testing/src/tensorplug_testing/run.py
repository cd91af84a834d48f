"""Runs the cases of the kit in one or several processes, and reports the outcomes."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tensorplug
from tensorplug.text import table
from tensorplug_testing.cases import Case
from tensorplug_testing.check import Outcome, check
from tensorplug_testing.workers import share_out

Progress = Callable[[Outcome], None]
SHOWN = 3
"""The most failures of one cause, and the most reasons, in the text of a report."""


@dataclass(frozen=True, slots=True)
class Run:
    """The outcomes of a run of the kit on one device."""

    device: str
    tier: str
    seed: int
    outcomes: tuple[Outcome, ...]

    def count(self, verdict: str) -> int:
        """The number of cases and tests with this verdict."""
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    @property
    def passed(self) -> bool:
        """True if no case failed and at least one passed."""
        return self.count("failed") == 0 and self.count("passed") > 0

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops with at least one passed case, sorted."""
        done = {o.op for o in self.outcomes if o.verdict == "passed" and o.op}
        return tuple(sorted(done))

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary with a summary, and one record for each case and test."""
        summary = {
            "device": self.device,
            "tier": self.tier,
            "seed": self.seed,
            **{verdict: self.count(verdict) for verdict in ("passed", "failed", "refused")},
            "ops": len(self.ops),
        }
        return {"summary": summary, "records": [o.to_json() for o in self.outcomes]}

    def to_csv(self) -> str:
        """One line for each case and test."""
        return as_csv([f.name for f in fields(Outcome)], [o.to_json() for o in self.outcomes])

    def __str__(self) -> str:
        counts = Counter((o.op or "suites", o.verdict) for o in self.outcomes)
        names = dict.fromkeys(o.op or "suites" for o in self.outcomes)
        verdicts = ("passed", "failed", "refused")
        rows = [[name, *(str(counts[name, v] or "-") for v in verdicts)] for name in names]
        lines = [*table(("op", *verdicts), rows), "", *self.failures("--csv has all")]
        total = ", ".join(f"{self.count(v)} {v}" for v in verdicts)
        lines.append(f"{self.device}: {total}, {len(self.ops)} ops; {self._again()}")
        return "\n".join([*lines, *self._nothing_passed()])

    def failures(self, rest: str) -> list[str]:
        """Lines of the failures, grouped by cause, because one mistake can fail a hundred cases.

        The most frequent cause comes first; for each cause the first SHOWN failures are printed.
        `rest` says where the others are.
        """
        by_cause: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.verdict == "failed":
                cause = outcome.cause or outcome.op or outcome.case.partition("[")[0]
                by_cause.setdefault(cause, []).append(outcome)
        lines = []
        for cause, failed in sorted(by_cause.items(), key=lambda each: -len(each[1])):
            if len(failed) == 1:
                lines.append(f"FAILED {failed[0].detail}")
                continue
            ops = ", ".join(dict.fromkeys(o.op or o.case.partition("[")[0] for o in failed))
            of = "" if cause.startswith(ops) else f" ({ops})"
            lines.append(f"FAILED {len(failed)} x {cause}{of}")
            lines += [f"  {outcome.detail}" for outcome in failed[:SHOWN]]
            if len(failed) > SHOWN:
                lines.append(f"  {len(failed) - SHOWN} more; {rest}")
        return lines

    def _nothing_passed(self) -> list[str]:
        """Lines that explain why a run without failures did not pass: nothing was computed."""
        if self.passed or self.count("failed"):
            return []
        reasons = Counter(o.detail for o in self.outcomes).most_common(SHOWN)
        head = "nothing was computed, which counts as a failure; most often refused:"
        return [head, *(f"  {count} x {reason}" for reason, count in reasons)]

    def _again(self) -> str:
        return f"tier {self.tier}, seed {self.seed}"


def as_csv(head: Sequence[str], records: Sequence[dict[str, Any]]) -> str:
    """Return `records` as CSV with the columns `head`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")


def run_cases(
    spec: str,
    cases: Sequence[Case],
    *,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Check `cases` on the device that `spec` names, in order. Raises DeviceError."""
    found = []
    for place, outcome in _outcomes(spec, cases, seed, jobs):
        found.append((place, outcome))
        if progress is not None:
            progress(outcome)
    return [outcome for _, outcome in sorted(found, key=lambda each: each[0])]


def _outcomes(
    spec: str, cases: Sequence[Case], seed: int, jobs: int
) -> Iterator[tuple[int, Outcome]]:
    with tensorplug.open(spec) as backend:
        if jobs <= 1:
            yield from enumerate(check(case, backend, base=seed) for case in cases)
            return
    # The device opens. It is closed again, because some devices allow only one process at a time.
    yield from share_out(spec, cases, seed=seed, jobs=jobs)
