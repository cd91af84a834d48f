"""Variants of products under oclgrind, also those that the kit does not ask for; it is slow."""

import subprocess
import sys
from pathlib import Path

VARIANTS = Path(__file__).with_name("test_variants.py")


def test_every_variant_of_products_races_for_nothing_and_stays_in_bounds(oclgrind):
    command = [
        "-m",
        "pytest",
        "-q",
        str(VARIANTS),
        "-m",
        "T0",
        "-k",
        "experts or serves or teams or bytes",
    ]

    done = subprocess.run(
        [sys.executable, *command], env=oclgrind, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
