"""Progress of long tasks: a bar on a terminal, lines elsewhere, and a summary."""

import sys

import pytest

from tensorplug.cli import progress
from tensorplug.cli.progress import showing_progress

pytestmark = pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "file"])


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "monotonic", found)
    return found


class Run:
    """Runs tasks with stderr as a terminal or not; gives what they write."""

    def __init__(
        self, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.clock, self._capsys, self._monkeypatch = clock, capsys, monkeypatch

    def __call__(
        self, steps: list[tuple[float, int, int | None]], say: str = "", *, is_terminal: bool
    ) -> str:
        """A task on texts whose steps are each seconds, what is done then, and of how much."""
        self._monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
        with showing_progress("embedding", "texts") as done:
            for seconds, count, total in steps:
                self.clock.now += seconds
                done(count, total)
            if say:
                done.say(say)
            if "fails" in say:
                raise OSError(say)
        return self.written()

    def written(self) -> str:
        return self._capsys.readouterr().err


@pytest.fixture
def run(clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(clock, capsys, monkeypatch)


def test_a_short_task_prints_nothing(run: Run, is_terminal: bool) -> None:
    assert run([(0.5, 1, 1)], is_terminal=is_terminal) == ""


def test_a_long_task_shows_how_far_it_is_and_ends_with_a_summary(
    run: Run, is_terminal: bool
) -> None:
    written = run([(12.0, 30, 120), (5.0, 120, 120)], is_terminal=is_terminal)

    shown = "embedding:  25%" if is_terminal else "embedding: 30 of 120 texts (25%), 12 s\n"
    assert shown in written
    assert written.endswith("embedding: 120 texts in 17.0 s\n")


def test_a_task_of_unknown_length_counts(run: Run, is_terminal: bool) -> None:
    written = run([(12.0, 7, None)], is_terminal=is_terminal)

    assert ("7 texts [" if is_terminal else "embedding: 7 texts, 12 s\n") in written


def test_a_line_of_a_task_stands_by_itself(run: Run, is_terminal: bool) -> None:
    assert "\nnote\n" in "\n" + run([(12.0, 1, 2)], "note", is_terminal=is_terminal).replace(
        "\r", "\n"
    )


def test_a_task_that_fails_has_no_summary(run: Run, is_terminal: bool) -> None:
    with pytest.raises(OSError, match="it fails"):
        run([(12.0, 1, 2)], "it fails", is_terminal=is_terminal)

    assert " in 12.0 s" not in run.written()
