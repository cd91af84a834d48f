"""The conformance kit and our own tests with AddressSanitizer and UndefinedBehaviorSanitizer."""

from pathlib import Path

import pytest

from tensorplug_native.library import library

from .building import ADDRESS, KIT, TESTS, build, run_tests, runtime


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("asan"), "native", *ADDRESS)


def run(built: Path, level: str, *arguments: str) -> None:
    """Run pytest; any report of a sanitizer ends the process."""
    run_tests(
        built,
        level,
        *arguments,
        LD_PRELOAD=runtime("asan"),
        # Python keeps much until its process ends; tests ask for more memory than there is.
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
        UBSAN_OPTIONS="print_stacktrace=1",
        # So that each of Python's objects is a piece of memory with bounds that are watched.
        PYTHONMALLOC="malloc",
    )


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
    run(built, "auto", str(TESTS / f"{file}.py"), "-m", "not slow")
