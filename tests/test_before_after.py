"""The script `benchmarks/before_after.py`: its rule, its turns, its other checkout."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "before_after.py"
PROJECT = """
[project]
name = "small"
version = "0"
requires-python = ">=3.11"

[tool.uv]
package = false
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, for a checkout with one workload, whose processes note their turns."""
    spec = importlib.util.spec_from_file_location("before_after", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    # Dataclasses look for the module of their class by its name.
    monkeypatch.setitem(sys.modules, "before_after", module)
    spec.loader.exec_module(module)
    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "WORKLOADS", {"small": ("small.py", "word")})
    write_workload(root, {"speed": 100})
    (root / "pyproject.toml").write_text(PROJECT)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "change")
    return module


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_workload(root: Path, printed: dict[str, object]) -> None:
    """Make the workload of a checkout: it prints some JSON and adds its checkout to `turns`."""
    folder = root / "benchmarks" / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    turns = root.parent / "turns"
    (folder / "small.py").write_text(
        f"from pathlib import Path\n"
        f"with Path({str(turns)!r}).open('a') as file:\n"
        f"    file.write({root.name!r} + '\\n')\n"
        f"print({json.dumps(printed)!r})\n"
    )


def side(script, name: str, printed: dict[str, object]):
    """A side with a checkout of its own."""
    root = script.ROOT.parent / name
    write_workload(root, printed)
    return script.Side(name, root, sys.executable)


def drawn(ratio: float, noise: float, pairs: int = 15) -> list[tuple[float, float]]:
    """Pairs of speeds with a median ratio."""
    rng = np.random.default_rng(1)
    return [(100.0, 100.0 * ratio * r) for r in rng.normal(1.0, noise, pairs)]


@pytest.mark.parametrize(
    ("ratio", "noise", "slower"),
    [
        (1.0, 0.01, False),
        (0.98, 0.001, False),
        (0.96, 0.001, True),
        (0.5, 0.1, True),
        (0.96, 0.2, False),  # too noisy to say
    ],
)
def test_figure_is_slower_where_all_of_its_interval_is_below_the_limit(
    script, ratio, noise, slower
):
    verdict = script.judge(drawn(ratio, noise))

    assert verdict.slower is slower
    assert verdict.low <= verdict.median <= verdict.high


def test_interval_is_wider_where_speeds_scatter_more(script):
    assert script.judge(drawn(1.0, 0.1)).width > 5 * script.judge(drawn(1.0, 0.01)).width


def test_processes_of_a_pair_take_turns(script):
    before, after = side(script, "before", {"speed": 100}), side(script, "after", {"speed": 90})

    verdicts, left_out = script.measure(before, after, ["small"], 3)

    turns = (script.ROOT.parent / "turns").read_text().split()
    assert turns == ["before", "after", "before", "after", "after", "before", "before", "after"]
    assert verdicts["small: speed"].median == 0.9
    assert left_out == {}


def test_workload_that_is_not_here_is_left_out_with_its_reason(script):
    before, after = side(script, "before", {"skipped": "no model"}), side(script, "after", {})

    found = script.measure(before, after, ["small"], 15)

    assert found == ({}, {"small": "before: no model"})


def test_figure_of_one_side_is_left_out_with_its_reason(script):
    before = side(script, "before", {"speed": 100, "old": 1})
    after = side(script, "after", {"speed": 100, "new": 1})

    verdicts, left_out = script.measure(before, after, ["small"], 1)

    assert list(verdicts) == ["small: speed"]
    assert left_out == {"small: old": "measured before only", "small: new": "measured after only"}


def test_workload_that_fails_ends_the_comparison_with_its_error(script):
    before = side(script, "before", {})
    (before.root / "benchmarks" / "workloads" / "small.py").write_text("raise OSError('broken')")

    with pytest.raises(SystemExit, match=r"(?s)before_after: before: .*OSError: broken"):
        script.measure(before, before, ["small"], 15)


def test_fewer_pairs_than_an_interval_needs_are_wrong_use(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["HEAD", "--pairs", "14"])

    assert "--pairs is 14; an interval needs at least 15" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
@pytest.mark.parametrize(
    ("speed", "status", "said"), [(100, 0, "0.000\n"), (50, 1, "0.000  SLOWER\n")]
)
def test_checkout_is_compared_with_a_commit(
    script, tmp_path, monkeypatch, capsys, speed, status, said
):
    monkeypatch.setenv("UV_OFFLINE", "1")
    write_workload(script.ROOT, {"speed": speed})

    found = script.main(["HEAD", "--json", str(tmp_path / "figures.json")])

    report = json.loads((tmp_path / "figures.json").read_text())
    assert found == status
    assert report["figures"]["small: speed"]["median"] == speed / 100
    assert capsys.readouterr().out.endswith(said)


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
def test_other_checkout_is_removed(script, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")

    with script.checkout("HEAD") as before:
        was_there = before.root.exists() and Path(before.python).exists()

    assert was_there
    assert not before.root.exists()
    assert len(git(script.ROOT, "worktree", "list").splitlines()) == 1


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
def test_unknown_commit_is_named(script):
    with (
        pytest.raises(SystemExit, match="before_after: there is no commit 'nowhere': fatal"),
        script.checkout("nowhere"),
    ):
        pass
