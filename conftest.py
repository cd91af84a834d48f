"""What all tests of the checkout share: a collector of garbage that leaves the tests alone."""

import gc


def pytest_collection_finish() -> None:
    """Freeze some million objects that pytest keeps for tens of thousands of tests.

    Tests that call `gc.collect()` would look at all of them each time, and so would Python itself.
    """
    gc.collect()
    gc.freeze()
