"""`tensorplug test` and `tensorplug certify`: run the kit and report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorplug
from tensorplug.cli.progress import Progress, showing_progress
from tensorplug.errors import OptionError
from tensorplug.registry.candidate import Candidate, State
from tensorplug.registry.spec import parse_spec
from tensorplug_testing.cases import REFUSED, Case
from tensorplug_testing.cases.performance import PERFORMANCE
from tensorplug_testing.check import Outcome
from tensorplug_testing.cli.certificate import Certificate
from tensorplug_testing.performance import Figures, measure
from tensorplug_testing.run import Run, run_cases
from tensorplug_testing.suite_run import run_suites
from tensorplug_testing.support import Support, ask
from tensorplug_testing.tiers import select


@dataclass(frozen=True, slots=True)
class Choice:
    """The part of the kit to run, from the options of the command line."""

    ops: Sequence[str] = ()
    pattern: str = ""
    tier: str = "ci"
    seed: int = 0
    jobs: int = 1

    @property
    def everything(self) -> bool:
        """True if no ops or cases were selected: then the suites run too."""
        return not self.ops and not self.pattern

    def cases(self) -> list[Case]:
        """The selected cases. Raises OptionError if there are none."""
        found = select(self.tier, seed=self.seed, ops=self.ops, pattern=self.pattern)
        return self._some(found)

    def performance(self) -> list[Case]:
        """The selected performance cases. Raises OptionError if there are none."""
        picked = select("full", ops=self.ops, pattern=self.pattern, cases=PERFORMANCE)
        return self._some(picked)

    def _some(self, found: list[Case]) -> list[Case]:
        if not found:
            of = f" of {', '.join(self.ops)}" if self.ops else ""
            raise OptionError(
                f"no case{of} matches {self.pattern!r}; "
                "--mode support --csv --tier full lists all ids"
            )
        return found


class Result(Protocol):
    """The result of every mode: a text (`str`), JSON data, and CSV."""

    def to_json(self) -> dict[str, Any]: ...
    def to_csv(self) -> str: ...


def run_mode(mode: str, spec: str, choice: Choice) -> Result:
    """Run a mode of `tensorplug test` on the device `spec`. Raises OptionError."""
    if mode not in MODES:
        raise OptionError(f"mode {mode!r} is unknown; modes are {', '.join(MODES)}")
    tensorplug.load_all()
    return MODES[mode](spec, choice)


def judge(spec: str, choice: Choice) -> Run:
    """Run the selected cases, and the suites if no ops or cases were selected."""
    cases = choice.cases()
    with showing_progress("running", "cases") as shown:
        done = _counting(shown, len(cases))
        outcomes = run_cases(spec, cases, seed=choice.seed, jobs=choice.jobs, progress=done)
    if choice.everything:
        with showing_progress("running", "tests of suites") as shown:
            done = _counting(shown, None)
            outcomes += run_suites(spec, tier=choice.tier, seed=choice.seed, progress=done)
    return Run(_device_name(spec), choice.tier, choice.seed, tuple(outcomes))


def time(spec: str, choice: Choice) -> Figures:
    """Measure the speed of the performance cases, whatever the tier. Raises OptionError."""
    if choice.jobs > 1:
        raise OptionError("mode perf times one case after another; leave -j out")
    cases, figures = choice.performance(), []
    with tensorplug.open(spec) as backend, showing_progress("timing", "cases") as done:
        for case in cases:
            figures.append(measure(case, backend, base=choice.seed))
            done.one_more(len(cases))
    return Figures(_device_name(spec), tuple(figures))


def support(spec: str, choice: Choice) -> Support:
    """Ask the device whether it supports the cases, without computing anything."""
    refused = REFUSED if choice.everything and choice.tier == "full" else ()
    with tensorplug.open(spec) as backend:
        return ask(backend.device, [*choice.cases(), *refused])


def certify(spec: str, choice: Choice) -> Certificate:
    """Run the kit and return its one-page report."""
    candidates = tensorplug.load_all().candidates
    run = judge(spec, choice)
    with tensorplug.open(spec) as backend:
        info = backend.device.info
    name = info.name.partition(":")[0]
    return Certificate(run, spec, info, _origin(name, parse_spec(spec).distribution, candidates))


def _origin(name: str, project: str, candidates: Sequence[Candidate]) -> str:
    """The distribution that offers the backend `name`: `project`, or else the chosen one."""
    offers = [c for c in candidates if c.name == name and not c.state.refused]
    named = [c for c in offers if c.project == project]
    used = [c for c in offers if c.state is not State.SUPERSEDED]
    return (named or used)[0].distribution


MODES: dict[str, Callable[[str, Choice], Result]] = {
    "test": judge,
    "perf": time,
    "support": support,
}


def _device_name(spec: str) -> str:
    with tensorplug.open(spec) as backend:
        return backend.device.name


def _counting(shown: Progress, total: int | None) -> Callable[[Outcome], None]:
    """Counts outcomes for a progress; on a terminal failures are printed as they come."""

    def done(outcome: Outcome) -> None:
        shown.one_more(total)
        if outcome.verdict == "failed" and shown.is_terminal:
            shown.say(f"FAILED {outcome.detail}")

    return done
