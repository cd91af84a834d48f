"""Fixtures that tests of core share: the fake device in its main forms."""

from collections.abc import Iterator

import pytest

from tensorplug.testing.null import NullDevice


@pytest.fixture
def null() -> Iterator[NullDevice]:
    """A device with memory of its own that works at once."""
    with NullDevice() as device:
        yield device


@pytest.fixture
def host() -> Iterator[NullDevice]:
    """A device in host memory that works at once."""
    with NullDevice("host:0", host=True) as device:
        yield device


@pytest.fixture
def late() -> Iterator[NullDevice]:
    """A device that works only when somebody waits."""
    with NullDevice("late:0", asynchronous=True) as device:
        yield device
