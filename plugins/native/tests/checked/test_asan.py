"""The conformance kit and our own tests with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_native.library import VARIABLE, library

from .building import ADDRESS, build, runtime

HERE = Path(__file__).parent
RUNNER = HERE / "instrumented.py"
KIT = ("--pyargs", "tensorplug_testing.conformance", "--device", "cpu@tensorplug-native")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("asan"), "native", *ADDRESS)


def run(built: Path, level: str, *arguments: str) -> None:
    """Run pytest; any report of a sanitizer ends the process."""
    environment = {
        **os.environ,
        VARIABLE: level,
        "LD_PRELOAD": runtime("asan"),
        # Python keeps much until its process ends; tests ask for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # So that each of Python's objects is a piece of memory with bounds that are watched.
        "PYTHONMALLOC": "malloc",
    }
    # What is written by others than Python, reports above all, is not captured.
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=sys")
    command = [sys.executable, str(RUNNER), str(built), *options, *arguments]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("level", library().levels)
def test_kit_touches_no_memory_of_others(built, level):
    # AddressSanitizer holds freed memory for a while, to watch it.
    chosen = ("-m", "not slow and not long", "-k", "not hold_no_memory")
    run(built, level, *KIT, *chosen, "--tensorplug-tier=smoke")


@pytest.mark.parametrize(
    "file",
    [
        "test_against_reference",
        "test_shapes",
        "test_int8",
        "test_plan",
        "test_library",
        "test_encoders",
    ],
)
def test_our_tests_touch_no_memory_of_others(built, file):
    run(built, "auto", str(HERE.parent / f"{file}.py"), "-m", "not slow")
