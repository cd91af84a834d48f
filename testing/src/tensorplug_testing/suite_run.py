"""Runs the suites of the kit (memory, transfers, plans, ...) with pytest, as outcomes."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorplug.errors import TensorplugError
from tensorplug_testing import conformance
from tensorplug_testing.check import OURS, Outcome, cause_of_error
from tensorplug_testing.run import Progress

_VERDICTS = {"passed": "passed", "failed": "failed", "skipped": "refused"}


class Recorder:
    """A pytest plugin that deselects the cases of ops and records the outcomes of other tests."""

    def __init__(self, seed: int, progress: Progress | None) -> None:
        self._seed = seed
        self._progress = progress
        self.outcomes: list[Outcome] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Deselect the cases of ops, which run without pytest because that is faster."""
        items[:] = [item for item in items if item.originalname != "test_case"]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test: its call, or a setup or teardown that failed."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2]
        detail, cause = "" if report.passed else _reason(report), ""
        if report.failed:
            cause = _cause(report, name.partition("[")[0])
            detail = f"{name}: {detail}"
        verdict = _VERDICTS[report.outcome]
        outcome = Outcome(name, "", verdict, detail, self._seed, report.duration, cause)
        self.outcomes.append(outcome)
        if self._progress is not None:
            self._progress(outcome)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: file, line, text
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)
    # NumPy's text begins with an empty line; pytest repeats one that was asserted to be empty.
    kind, _, message = crash.message.partition("\nassert not ")[0].partition(":")
    return f"{kind}: {message.strip()} ({Path(crash.path).name}:{crash.lineno})"


def _cause(report: pytest.TestReport, test: str) -> str:
    """The type of the exception and the innermost line of the backend; the test without one."""
    crash = getattr(report.longrepr, "reprcrash", None)
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    places = [entry.reprfileloc for entry in entries if getattr(entry, "reprfileloc", None)]
    theirs = [p for p in places if not OURS & set(Path(p.path).parts)]
    line = f"{Path(theirs[-1].path).name}:{theirs[-1].lineno}" if theirs else ""
    kind = crash.message.partition(":")[0].strip() if crash is not None else "error"
    return cause_of_error(kind, line, test)


def run_suites(
    spec: str, *, tier: str = "ci", seed: int = 0, progress: Progress | None = None
) -> list[Outcome]:
    """Run all tests of the kit that are not cases of ops. Raises TensorplugError."""
    recorder = Recorder(seed, progress)
    printed = io.StringIO()
    # "-c": pytest settings of the current folder must not change the run.
    arguments = ["-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib", "-q"]
    arguments += ["--rootdir", str(Path(conformance.__file__).parent), "-p", "tensorplug_pytest"]
    for name, value in {"device": spec, "tier": tier, "kit-seed": str(seed)}.items():
        arguments += [f"--tensorplug-{name}", value]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _alone():
        status = pytest.main([*arguments, *conformance.__path__], plugins=[recorder])
    if status == pytest.ExitCode.INTERRUPTED:
        count = len(recorder.outcomes)
        raise TensorplugError(f"{spec}: interrupted after {count} tests; nothing was written")
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise TensorplugError(f"{spec}: pytest could not run the suites: {printed.getvalue()}")
    return recorder.outcomes


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hide environment variables that add plugins and options to pytest."""
    before = dict(os.environ)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
