"""The pytest plugin of tensorplug: options of the conformance kit, and known gaps.

It is loaded by every pytest run of an environment that has tensorplug, so it imports nothing else.
"""

import fnmatch
import warnings
from typing import Any

import pytest


def pytest_addoption(parser: Any) -> None:
    """Add the options of the kit; another plugin's option of the same name stays."""
    group = parser.getgroup("tensorplug", "tensorplug: conformance kit for backends")
    options: dict[str, dict[str, Any]] = {
        "--device": {"help": "device that the kit tests: opencl:0, cpu@tensorplug-cpu"},
        "--tier": {"default": "ci", "help": "how much of the kit runs: smoke, ci or full"},
        "--kit-seed": {"type": int, "default": 0, "help": "base of the seeds of all cases"},
    }
    for name, settings in options.items():
        try:
            group.addoption(name, **settings)
        except ValueError:
            continue


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Mark what a class lists in `known_gaps` (pattern: reason) as a strict expected failure.

    A pattern without any test of its class is most likely misspelt: it gives a warning.
    """
    classes = {cls for item in items if (cls := getattr(item, "cls", None)) is not None}
    for cls in classes:
        for pattern in getattr(cls, "known_gaps", None) or ():
            if not fnmatch.filter(dir(cls), pattern.partition("[")[0]):
                warnings.warn(
                    f"{cls.__name__}.known_gaps: {pattern!r} names no test of the class",
                    pytest.PytestWarning,
                    stacklevel=1,
                )
    for item in items:
        gaps = getattr(getattr(item, "cls", None), "known_gaps", None)
        if not gaps:
            continue
        name = item.nodeid.rpartition("::")[2]
        reason = next((r for pattern, r in gaps.items() if _covers(pattern, name)), None)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


def _covers(pattern: str, name: str) -> bool:
    """Whether a gap is about a test: the bracket before the case stands for itself."""
    plain = pattern.replace("[", "[[]")
    return name == pattern or any(fnmatch.fnmatchcase(name, p) for p in (pattern, plain))
