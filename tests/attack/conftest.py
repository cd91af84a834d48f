"""What all attacks share: a printed seed, and how many attempts there are.

`./verify attack` draws a new seed and makes every attempt; elsewhere the seed is 0 and the attempts
are few.
"""

import os
from collections.abc import Callable
from random import Random

import pytest

FULL = "TENSORPLUG_ATTACK"
"""The variable with the seed of a full attack."""


@pytest.fixture
def seed(record_property: Callable[[str, object], None]) -> int:
    """The seed of this attack, printed with a failure and kept in the report."""
    chosen = int(os.environ.get(FULL, "0"))
    record_property("seed", chosen)
    print(f"seed {chosen}: repeat with {FULL}={chosen}")
    return chosen


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> Random:
    """Random numbers of this seed and this test."""
    return Random(f"{seed} {request.node.nodeid}")


@pytest.fixture
def attempts(record_property: Callable[[str, object], None]) -> Callable[[int, int], int]:
    """`attempts(few, all_of_them)`: how many to make in this run. The report keeps the number."""

    def number(few: int, every: int) -> int:
        chosen = every if FULL in os.environ else few
        record_property("attempts", chosen)
        return chosen

    return number
