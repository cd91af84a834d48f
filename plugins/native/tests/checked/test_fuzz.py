"""Damaged programs are refused, or stay within what their operands describe."""

import os
import subprocess

import pytest

from .building import ADDRESS, build

SECONDS = 120


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    return build(tmp_path_factory.mktemp("fuzz"), "replay", "TP_CHECKS=ON", *ADDRESS)


def run(*command):
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def test_whole_programs_touch_no_memory_of_others(alone, replay):
    run(str(replay), "run", str(alone), "3")


@pytest.mark.parametrize("seed", [0, 1])
def test_damaged_programs_touch_no_memory_of_others(alone, replay, seed):
    run(str(replay), "fuzz", str(alone), str(SECONDS), str(seed))
