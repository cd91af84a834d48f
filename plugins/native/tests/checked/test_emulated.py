"""Levels above AVX2 on any x86 processor: functions compute what AVX-512 and AMX would."""

from pathlib import Path

import pytest

from .building import TESTS, build, run_tests

HEADER = Path("/usr/include/simde/x86/avx512.h")
LEVELS = ("avx512", "avx512_bf16", "amx")

pytestmark = [
    pytest.mark.skipif(not HEADER.exists(), reason="apt-get install libsimde-dev"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    quick = ("CMAKE_BUILD_TYPE=Checked", "CMAKE_CXX_FLAGS=-O1")
    return build(tmp_path_factory.mktemp("emulated"), "native", "TP_EMULATE=ON", *quick)


def run(built: Path, file: str, *levels: str) -> None:
    """Run the tests of a file that name one of the levels."""
    chosen = ("-m", "not slow", "-k", " or ".join(levels))
    run_tests(built, "auto", str(TESTS / f"{file}.py"), *chosen)


@pytest.mark.parametrize(
    "file",
    [
        "test_against_reference",
        "test_encoders",
        "test_fusions",
        "test_int8",
        "test_ops",
        "test_panels",
        "test_plan",
        "test_shapes",
    ],
)
def test_our_tests_pass_at_levels_of_other_processors(built, file):
    run(built, file, *LEVELS)


def test_a_model_writes_the_text_of_numpy_by_tiles(built):
    run(built, "test_language_model", "amx")
