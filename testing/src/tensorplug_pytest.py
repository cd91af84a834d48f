"""The pytest plugin of tensorplug: options of the conformance kit, and known gaps.

It is loaded by every pytest run of an environment that has tensorplug, so it imports nothing else.
"""

import argparse
import fnmatch
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest


def shard_of(text: str) -> tuple[int, int]:
    """Parse `I/N` into two numbers, for argparse."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shard; write 2/3")
    return int(part), int(parts)


OPTIONS: dict[str, dict[str, Any]] = {
    "device": {"help": "device that the kit tests: opencl:0, cpu@tensorplug-cpu"},
    "tier": {
        "default": "ci",
        "choices": ("smoke", "ci", "full"),
        "help": "how much of the kit runs: smoke, ci or full",
    },
    "kit-seed": {"type": int, "default": 0, "help": "base of the seeds of all cases"},
}
SHARD = {
    "type": shard_of,
    "default": (1, 1),
    "metavar": "I/N",
    "help": "every N-th test or group of them, from I on",
}


def pytest_addoption(parser: Any) -> None:
    """Add the options of the kit with names that no other plugin has: `--tensorplug-device`."""
    _add(parser, {f"--tensorplug-{name}": name for name in OPTIONS})
    group = parser.getgroup("tensorplug")
    group.addoption("--tensorplug-shard", dest="tensorplug_shard", **SHARD)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: Any) -> Iterator[None]:
    """Add short options, such as `--device`, after all plugins and `conftest.py` files.

    An option that another plugin or the project has added keeps its meaning. If the kit added its
    options first, a project whose `conftest.py` adds `--device` could not run its tests.
    """
    yield
    names = {f"--{name}": name for name in OPTIONS}
    _add(parser, {flag: name for flag, name in names.items() if _is_free(parser, flag)})


def _add(parser: Any, flags: dict[str, str]) -> None:
    group = parser.getgroup("tensorplug", "tensorplug: conformance kit for backends")
    for flag, name in flags.items():
        dest = f"tensorplug_{name.replace('-', '_')}"
        group.addoption(flag, dest=dest, **OPTIONS[name])


def _is_free(parser: Any, flag: str) -> bool:
    """True if no option has this name. pytest checks names only within one group."""
    try:
        _, unknown = parser.parse_known_and_unknown_args([f"{flag}=x"])
    except pytest.UsageError:  # an option of another plugin, which rejects the value x
        return False
    return bool(unknown)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> Iterator[None]:
    """Mark known gaps; keep the part of the tests that `--tensorplug-shard` names."""
    mark_gaps(items)
    yield
    part, parts = config.getoption("tensorplug_shard")
    if parts > 1:
        groups = [list(group) for _, group in itertools.groupby(items, _shared)]
        mine = [item for group in groups[part - 1 :: parts] for item in group]
        chosen = set(mine)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = mine


def _shared(item: Any) -> tuple[str, str]:
    """A key that is equal for neighbours with equal parameters, which may share slow fixtures."""
    file, _, name = item.nodeid.partition("::")
    return file, name.partition("[")[2] or name


def mark_gaps(items: list[Any]) -> None:
    """Mark tests that a class lists in `known_gaps` (pattern: reason) as strict expected failures.

    A pattern that matches no test of its class is probably misspelt, and gives a warning.
    """
    for cls in {cls for item in items if (cls := getattr(item, "cls", None)) is not None}:
        for pattern in _gaps(cls):
            if not fnmatch.filter(dir(cls), pattern.partition("[")[0]):
                warnings.warn(
                    f"{cls.__name__}.known_gaps: {pattern!r} names no test of the class",
                    pytest.PytestWarning,
                    stacklevel=1,
                )
    for item in items:
        name = item.nodeid.rpartition("::")[2]
        gaps = _gaps(getattr(item, "cls", None))
        reason = next((r for pattern, r in gaps.items() if _covers(pattern, name)), None)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


def _gaps(cls: type | None) -> Mapping[str, str]:
    """The known gaps of a test class; empty if its attribute of this name is something else."""
    gaps = getattr(cls, "known_gaps", None)
    return gaps if isinstance(gaps, Mapping) else {}


def _covers(pattern: str, name: str) -> bool:
    """True if a gap's pattern matches a test. The bracket before the case is a plain character."""
    plain = pattern.replace("[", "[[]")
    return name == pattern or any(fnmatch.fnmatchcase(name, p) for p in (pattern, plain))
