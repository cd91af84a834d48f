"""A stand-in for PyObjC's core: pools, without which Metal's short-lived objects stay for good."""

from collections.abc import Iterator
from contextlib import contextmanager

from Metal._machine import machine


@contextmanager
def autorelease_pool() -> Iterator[None]:
    """A pool: objects made inside are released at the end, unless a reference to them is left."""
    machine.pools.depth = machine.depth + 1
    try:
        yield
    finally:
        machine.pools.depth -= 1
