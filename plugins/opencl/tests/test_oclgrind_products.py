"""Variants of products under oclgrind, also those that the kit does not ask for; it is slow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_opencl.drivers import VENDORS

LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
VARIANTS = Path(__file__).with_name("test_variants.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY.exists(), reason="apt-get install oclgrind"),
]


def test_every_variant_of_products_races_for_nothing_and_stays_in_bounds(tmp_path):
    (tmp_path / "oclgrind.icd").write_text(f"{LIBRARY}\n")
    log = tmp_path / "oclgrind.log"
    environment = {
        **os.environ,
        VENDORS: str(tmp_path),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOG": str(log),
        "TENSORPLUG_CACHE": str(tmp_path),
    }
    command = ["-m", "pytest", "-q", str(VARIANTS), "-k", "experts or serves or teams or bytes"]

    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    assert not log.exists() or log.read_text() == ""
