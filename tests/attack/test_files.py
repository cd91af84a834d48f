"""Mutated model files: each works, or is refused with one of our errors; nothing crashes."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorplug.text import ending

BATCH = 500
FUZZ = Path(__file__).with_name("fuzz_files.py")
FOLDERS = (FUZZ.parent, FUZZ.parents[2] / "apps/llm/tests")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs alarms and limits of memory")


def test_a_mutated_model_works_or_is_refused(
    tmp_path: Path, seed: int, attempts: Callable[[int, int], int]
) -> None:
    number = attempts(300, 10_000)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []

    first = 0
    while first < number:
        last = min(first + BATCH, number)
        begun = first
        done = subprocess.run(
            [sys.executable, str(FUZZ), str(seed), str(first), str(last), str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))},
        )
        for line in map(json.loads, done.stdout.splitlines()):
            begun = line[1]
            if line[0] == "end":
                outcomes[line[2].split(":")[0]] += 1
                wrong += [f"mutation {begun}: {line[2]}"] if "WRONG" in line[2] else []
        if done.returncode:
            wrong.append(f"mutation {begun}: {ending(done.returncode)} {done.stderr[-300:]}")
        first = begun + 1 if done.returncode else last

    assert wrong == []
    # Mutations that are all refused at once would not reach what lies behind the reader.
    assert outcomes["works"] > number // 20
    assert outcomes["refused FormatError"] > number // 20
