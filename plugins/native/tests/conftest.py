"""There is nothing to test where the distribution is not installed, or has no library."""

import importlib.util


def is_compiled() -> bool:
    """Whether the library is there."""
    names = ("tensorplug_native", "tensorplug_native._native")
    return all(importlib.util.find_spec(name) is not None for name in names)


if is_compiled():
    from .streams import backend, device, numpy, three

    __all__ = ["backend", "device", "numpy", "three"]
else:
    collect_ignore_glob = ["test_*.py", "checked"]
