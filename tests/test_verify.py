"""The script `verify`: which tests a shard runs, what is recorded, and what counts as stale."""

import importlib.util
import json
import platform
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load(monkeypatch):
    """The script as a module."""
    loader = SourceFileLoader("verify", str(ROOT / "verify"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("verify", loader))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    # A dataclass looks up the module of its class in sys.modules.
    monkeypatch.setitem(sys.modules, "verify", module)
    loader.exec_module(module)
    return module


@pytest.fixture
def verify(tmp_path, monkeypatch):
    """The script in a repository with one suite of three tests and one commit."""
    module = load(monkeypatch)
    for name in ("a", "b", "c"):
        test = f"def test_{name}(): pass\n"
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / f"test_{name}.py").write_text(test)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "SUITES", {"small": module.Suite(("code",), ("code",))})
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return module


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    """Commit the code; gives the short name of the commit."""
    git(folder, "add", "code")
    git(folder, "commit", "--quiet", "-m", "change")
    return git(folder, "rev-parse", "--short", "HEAD")


def records(verify) -> list[dict]:
    file = verify.RESULTS / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write(verify, shard: str, commit: str, failed: int) -> None:
    """Write one record of the suite `small`."""
    verify.RESULTS.mkdir()
    record = {"suite": "small", "shard": shard, "commit": commit, "failed": failed}
    (verify.RESULTS / "records.jsonl").write_text(json.dumps(record) + "\n")


def call(verify, monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["verify", *arguments])
    return verify.main()


def test_shard_of_a_suite_is_run_and_recorded(verify, monkeypatch):
    status = call(verify, monkeypatch, "small", "--shard", "2/3")

    (record,) = records(verify)
    commit = git(verify.ROOT, "rev-parse", "--short", "HEAD")
    assert status == 0
    assert [record[key] for key in ("suite", "shard", "commit")] == ["small", "2/3", commit]
    assert [record[key] for key in ("passed", "failed", "skipped")] == [1, 0, 0]


def test_shards_have_all_tests_between_them(verify, monkeypatch):
    for part in ("1/3", "2/3", "3/3"):
        call(verify, monkeypatch, "small", "--shard", part)

    assert [record["passed"] for record in records(verify)] == [1, 1, 1]


@pytest.mark.parametrize("shard", ["3/2", "0/2", "2", "a/b", "-1/2", "1/0", "1/2/3"])
def test_invalid_shard_is_wrong_use(verify, monkeypatch, capsys, shard):
    with pytest.raises(SystemExit) as ended:
        call(verify, monkeypatch, "small", f"--shard={shard}")

    assert ended.value.code == 2
    assert f"{shard!r} is not a shard; write 2/3" in capsys.readouterr().err


def test_run_without_a_report_leaves_no_record(verify, monkeypatch):
    suite = verify.Suite(("code", "--no-such-option"), ("code",))
    monkeypatch.setattr(verify, "SUITES", {"small": suite})

    status = call(verify, monkeypatch, "small")

    assert status == pytest.ExitCode.USAGE_ERROR
    assert records(verify) == []


def test_run_that_skips_everything_leaves_no_record(verify, monkeypatch):
    skipped = "import pytest\n\n@pytest.mark.skip\ndef test_it(): pass\n"
    (verify.ROOT / "skipped").mkdir()
    (verify.ROOT / "skipped" / "test_d.py").write_text(skipped)
    monkeypatch.setattr(verify, "SUITES", {"small": verify.Suite(("skipped",), ("code",))})

    status = call(verify, monkeypatch, "small")

    assert status == 1
    assert records(verify) == []


def test_copy_without_git_names_its_commit_by_a_variable(verify, monkeypatch):
    monkeypatch.setattr(verify, "git", lambda *_arguments: "")
    monkeypatch.setenv("TENSORPLUG_COMMIT", "1234abc")

    call(verify, monkeypatch, "small")

    assert records(verify)[-1]["commit"] == "1234abc"


def test_run_of_the_whole_suite_replaces_the_page_of_its_report(verify, monkeypatch):
    (verify.ROOT / "code" / "test_a.py").write_text(
        "import os, pathlib\n\n"
        "def test_a():\n"
        "    pathlib.Path(os.environ['TENSORPLUG_FOUND_REPORT']).write_text('# Found')\n"
    )
    suite = verify.Suite(("code",), ("code",), report="found")
    monkeypatch.setattr(verify, "SUITES", {"small": suite})
    verify.RESULTS.mkdir()
    (verify.RESULTS / "found.md").write_text("old")

    call(verify, monkeypatch, "small")

    assert (verify.RESULTS / "found.md").read_text() == "# Found"


@pytest.fixture
def attack(verify, monkeypatch):
    """The suite with a seed: its test writes the seed to a file and reports ten attempts."""
    monkeypatch.delenv("TENSORPLUG_ATTACK", raising=False)
    (verify.ROOT / "code" / "test_a.py").write_text(
        "import os\n\n"
        "def test_a(record_property):\n"
        "    record_property('attempts', 10)\n"
        "    print(os.environ['TENSORPLUG_ATTACK'], file=open('seeds', 'a'))\n"
    )
    suite = verify.Suite(("code",), ("code",), seed="TENSORPLUG_ATTACK")
    monkeypatch.setattr(verify, "SUITES", {"small": suite})
    return verify


def test_suite_with_a_seed_gets_a_new_one_in_each_run_and_records_it(attack, monkeypatch):
    for _ in range(2):
        call(attack, monkeypatch, "small")

    seeds = (attack.ROOT / "seeds").read_text().split()
    found = [(str(record["seed"]), record["attempts"]) for record in records(attack)]
    assert len(set(seeds)) == 2
    assert found == [(seed, 10) for seed in seeds]


def test_suite_with_a_seed_keeps_one_that_is_set(attack, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_ATTACK", "42")

    call(attack, monkeypatch, "small")

    assert records(attack)[-1]["seed"] == 42


@pytest.mark.parametrize(
    ("shard", "of", "failed", "said"),
    [
        ("1/1", "HEAD", 0, ""),
        ("1/1", "HEAD~1", 0, "small: recorded at {commit}, 1 commits ago\n"),
        (
            "2/2",
            "HEAD~1",
            0,
            "small: no record of shard 1/2; run ./verify small --shard 1/2\n"
            "small: recorded at {commit}, shard 2/2, 1 commits ago\n",
        ),
        ("1/1", "HEAD", 3, "small: 3 failed at {commit}\n"),
    ],
)
def test_stale_names_suites_whose_record_is_old_or_had_failures(
    verify, monkeypatch, capsys, shard, of, failed, said
):
    (verify.ROOT / "code" / "test_d.py").write_text("")
    commit(verify.ROOT)
    at = git(verify.ROOT, "rev-parse", "--short", of)
    write(verify, shard, at, failed)

    status = call(verify, monkeypatch, "--stale")

    assert (status, capsys.readouterr().out) == (0, said.format(commit=at))


def test_record_is_not_old_where_every_change_was_taken_back(verify, monkeypatch, capsys):
    write(verify, "1/1", git(verify.ROOT, "rev-parse", "--short", "HEAD"), 0)
    changed = verify.ROOT / "code" / "test_d.py"
    changed.write_text("")
    commit(verify.ROOT)
    changed.unlink()
    commit(verify.ROOT)

    call(verify, monkeypatch, "--stale")

    assert capsys.readouterr().out == ""


def test_stale_says_where_a_record_is_of_an_unknown_commit(verify, monkeypatch, capsys):
    write(verify, "1/1", "abcdef1", 0)

    call(verify, monkeypatch, "--stale")

    said = "small: recorded at abcdef1, which this clone does not have\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("failed", "wanted"), [(0, 0), (3, 1)])
def test_strict_stale_exits_with_1_if_something_is_stale(verify, monkeypatch, failed, wanted):
    commit = git(verify.ROOT, "rev-parse", "--short", "HEAD")
    write(verify, "1/1", commit, failed)

    assert call(verify, monkeypatch, "--stale", "--strict") == wanted


def test_suite_for_a_new_debian_says_what_it_needs(verify, monkeypatch, capsys):
    suite = verify.Suite(("code",), ("code",), debian="unstable")
    monkeypatch.setattr(verify, "SUITES", {"small": suite})
    monkeypatch.setattr(verify.shutil, "which", lambda *_arguments, **_options: None)

    status = call(verify, monkeypatch, "small")

    assert status == 2
    assert "install debootstrap, unshare, git, or use this Python" in capsys.readouterr().err
    assert records(verify) == []


def test_suite_for_a_new_debian_runs_with_this_python_on_request(verify, monkeypatch):
    suite = verify.Suite(("code",), ("code",), debian="unstable")
    monkeypatch.setattr(verify, "SUITES", {"small": suite})

    status = call(verify, monkeypatch, "small", "--here")

    (record,) = records(verify)
    assert (status, record["passed"]) == (0, 3)
    assert f", Python {platform.python_version()}, " in record["versions"]


def test_copy_of_a_checkout_has_its_changes(verify, tmp_path):
    (verify.ROOT / "code" / "test_a.py").write_text("changed")

    copy = verify.copied(tmp_path / "copy")

    assert (copy / "code" / "test_a.py").read_text() == "changed"


def test_page_on_verification_has_a_row_for_each_suite(monkeypatch):
    suites = load(monkeypatch).SUITES
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")

    assert [name for name in suites if f"| `{name}` |" not in page] == []
