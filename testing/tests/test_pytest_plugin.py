"""The pytest plugin with other plugins, and in projects that have options of the same name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_pytest import OPTIONS
from tensorplug_testing.suite_run import run_suites
from tensorplug_testing.tiers import TIERS

FOREIGN = """
def pytest_addoption(parser):
    group = parser.getgroup("foreign")
    group.addoption("--device", {settings})
    group.addoption("--tier", action="append", default=[])
"""
UNRELATED = """
def test_option(request):
    assert request.config.getoption("{dest}") == "phone"
    assert request.config.getoption("tier") == []
"""
KIT = ("--pyargs", "tensorplug_testing.conformance", "-k", "test_leaf_and_view")


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a process of its own; gives the exit status and what was printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


GAPS = """
class TestAcme:
    known_gaps = {known_gaps}

    def test_one(self):
        assert {outcome}
"""


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (False, "XFAIL test_gaps.py::TestAcme::test_one - no kernel yet"),
        (True, "[XPASS(strict)] no kernel yet"),
    ],
)
def test_known_gap_is_strict_both_ways_and_gives_its_reason(tmp_path, outcome, said):
    gaps = {"test_one": "no kernel yet"}
    (tmp_path / "test_gaps.py").write_text(GAPS.format(known_gaps=gaps, outcome=outcome))

    status, printed = run_pytest(tmp_path, "-rx")

    assert status == int(outcome)
    assert said in printed


def test_known_gaps_of_another_kind_are_left_alone(tmp_path):
    (tmp_path / "test_gaps.py").write_text(GAPS.format(known_gaps=["test_one", 3], outcome=True))

    status, said = run_pytest(tmp_path, "-W", "error")

    assert status == 0, said


@pytest.mark.parametrize("dest", ["device", "emulated"])
@pytest.mark.parametrize(("file", "loading"), [("conftest.py", ()), ("foreign.py", ("-pforeign",))])
def test_project_with_an_option_of_the_same_name_keeps_it(tmp_path, file, loading, dest):
    (tmp_path / file).write_text(FOREIGN.format(settings=f"dest={dest!r}"))
    (tmp_path / "test_unrelated.py").write_text(UNRELATED.format(dest=dest))

    status, said = run_pytest(tmp_path, *loading, "--device", "phone")

    assert status == 0, said


@pytest.mark.parametrize("settings", ["type=int", "choices=('phone',)", "action='store_true'"])
def test_kit_runs_by_its_long_options_where_the_short_are_taken(tmp_path, settings):
    (tmp_path / "conftest.py").write_text(FOREIGN.format(settings=settings))
    chosen = ("--tensorplug-device", "cpu", "--tensorplug-tier", "smoke")

    status, said = run_pytest(tmp_path, *chosen, *KIT)

    assert status == 0, said


def test_kit_runs_by_its_short_options(tmp_path):
    status, said = run_pytest(tmp_path, "--device", "cpu", "--tier", "smoke", *KIT)

    assert status == 0, said


def test_unknown_tier_is_wrong_use(tmp_path):
    status, said = run_pytest(tmp_path, "--device", "cpu", "--tier", "huge", *KIT)

    assert status == pytest.ExitCode.USAGE_ERROR
    assert "argument --tier: invalid choice: 'huge'" in said


def test_plugin_knows_the_tiers_of_the_kit():
    assert OPTIONS["tier"]["choices"] == TIERS


@pytest.mark.long
def test_suites_run_without_the_plugins_and_options_of_the_user(monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")

    outcomes = run_suites("cpu", tier="smoke")

    assert {outcome.verdict for outcome in outcomes} <= {"passed", "refused"}
    assert os.environ["PYTEST_ADDOPTS"] == "--no-such-option"


PAGE = Path(__file__).parents[2] / "docs" / "pytest.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documents are not here")
def test_classes_of_the_page_are_collected_and_pass(tmp_path):
    whole, part = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "test_whole.py").write_text(whole)
    (tmp_path / "test_part.py").write_text(part)

    status, said = run_pytest(tmp_path, "--tier", "smoke", "test_whole.py", "-k", "case and sqr-")
    assert status == 0, said

    status, said = run_pytest(tmp_path, "test_part.py")
    assert status == 0, said
