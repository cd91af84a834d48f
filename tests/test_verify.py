"""The script `verify`: which tests a part runs, what it records, what it finds old."""

import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = "| small | {shard} | {commit} | 2026-01-01 | cpu | Python | 5 | {failed} | 0 |\n"


@pytest.fixture
def verify(tmp_path, monkeypatch):
    """The script, at work in a repository with one suite of three tests and one commit."""
    loader = SourceFileLoader("verify", str(ROOT / "verify"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("verify", loader))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    # Dataclasses look for the module of their class by its name.
    monkeypatch.setitem(sys.modules, "verify", module)
    loader.exec_module(module)
    for name in ("a", "b", "c"):
        test = f"def test_{name}(): pass\n"
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / f"test_{name}.py").write_text(test)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "verification.md")
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


def call(verify, monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["verify", *arguments])
    return verify.main()


def test_part_of_a_suite_is_run_and_recorded(verify, monkeypatch):
    status = call(verify, monkeypatch, "small", "--shard", "2/3")

    last = verify.RECORDS.read_text().splitlines()[-1]
    commit = git(verify.ROOT, "rev-parse", "--short", "HEAD")
    assert status == 0
    assert last.startswith(f"| small | 2/3 | {commit} |")
    assert last.endswith("| 1 | 0 | 0 |")


def test_parts_have_all_tests_between_them(verify, monkeypatch):
    for part in ("1/3", "2/3", "3/3"):
        call(verify, monkeypatch, "small", "--shard", part)

    rows = [row for row in verify.RECORDS.read_text().splitlines() if row.startswith("| small")]
    assert [row.split("|")[7].strip() for row in rows] == ["1", "1", "1"]


@pytest.mark.parametrize("shard", ["3/2", "0/2", "2", "a/b", "-1/2", "1/0", "1/2/3"])
def test_part_that_is_none_is_wrong_use(verify, monkeypatch, capsys, shard):
    with pytest.raises(SystemExit) as ended:
        call(verify, monkeypatch, "small", f"--shard={shard}")

    assert ended.value.code == 2
    assert f"{shard!r} is not a shard; write 2/3" in capsys.readouterr().err


def test_run_that_comes_to_no_report_leaves_no_record(verify, monkeypatch):
    suite = verify.Suite(("code", "--no-such-option"), ("code",))
    monkeypatch.setattr(verify, "SUITES", {"small": suite})

    status = call(verify, monkeypatch, "small")

    assert status == pytest.ExitCode.USAGE_ERROR
    assert not verify.RECORDS.exists()


def test_run_that_skips_everything_leaves_no_record(verify, monkeypatch):
    skipped = "import pytest\n\n@pytest.mark.skip\ndef test_it(): pass\n"
    (verify.ROOT / "skipped").mkdir()
    (verify.ROOT / "skipped" / "test_d.py").write_text(skipped)
    monkeypatch.setattr(verify, "SUITES", {"small": verify.Suite(("skipped",), ("code",))})

    status = call(verify, monkeypatch, "small")

    assert status == 1
    assert not verify.RECORDS.exists()


def test_copy_without_git_names_its_commit_by_a_variable(verify, monkeypatch):
    monkeypatch.setattr(verify, "git", lambda *_arguments: "")
    monkeypatch.setenv("TENSORPLUG_COMMIT", "1234abc")

    call(verify, monkeypatch, "small")

    assert verify.RECORDS.read_text().splitlines()[-1].startswith("| small | 1/1 | 1234abc |")


@pytest.fixture
def attack(verify, monkeypatch):
    """The suite made one with a seed: its test writes the seed down and reports ten attempts."""
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
    rows = attack.RECORDS.read_text().splitlines()[-2:]
    assert len(set(seeds)) == 2
    for seed, row in zip(seeds, rows, strict=True):
        assert f", seed {seed}: 10 attempts |" in row


def test_suite_with_a_seed_keeps_one_that_is_set(attack, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_ATTACK", "42")

    call(attack, monkeypatch, "small")

    assert ", seed 42: 10 attempts |" in attack.RECORDS.read_text()


@pytest.mark.parametrize(
    ("shard", "of", "failed", "said"),
    [
        ("1/1", "HEAD", 0, ""),
        ("1/1", "HEAD~1", 0, "small: recorded at {commit}, 1 commits ago\n"),
        (
            "2/2",
            "HEAD~1",
            0,
            "small: no record of part 1/2; run ./verify small --shard 1/2\n"
            "small: recorded at {commit}, part 2/2, 1 commits ago\n",
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
    verify.RECORDS.write_text(ROW.format(shard=shard, commit=at, failed=failed))

    status = call(verify, monkeypatch, "--stale")

    assert (status, capsys.readouterr().out) == (0, said.format(commit=at))


def test_stale_says_where_a_record_is_of_an_unknown_commit(verify, monkeypatch, capsys):
    verify.RECORDS.write_text(ROW.format(shard="1/1", commit="abcdef1", failed=0))

    call(verify, monkeypatch, "--stale")

    said = "small: recorded at abcdef1, which this clone does not have\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("failed", "wanted"), [(0, 0), (3, 1)])
def test_strict_stale_exits_with_1_where_it_has_something_to_say(
    verify, monkeypatch, failed, wanted
):
    commit = git(verify.ROOT, "rev-parse", "--short", "HEAD")
    verify.RECORDS.write_text(ROW.format(shard="1/1", commit=commit, failed=failed))

    assert call(verify, monkeypatch, "--stale", "--strict") == wanted
