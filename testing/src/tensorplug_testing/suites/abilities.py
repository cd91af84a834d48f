"""`needs`: marks tests of an optional ability, which are skipped for devices without it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import pytest

from tensorplug.device import Capabilities

ABILITIES = {
    "async_transfer": "asynchronous transfers",
    "async_copy": "asynchronous copies",
    "events": "events",
    "host_buffer": "host buffers",
    "host_import": "import of host memory",
    "mmap": "preference for mapped files",
    "threads": "number of threads to set",
    "abort": "abort callback",
    "fusion": "fused groups",
}
"""The name of each field of `Capabilities` in the reason of a skipped test."""

P = ParamSpec("P")


def needs(*abilities: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Skip a test whose `device` lacks one of `abilities`, which are fields of `Capabilities`.

    The test takes the fixture `device`; the reason reads `null:0 has no events`.
    """
    unknown = [name for name in abilities if name not in ABILITIES]
    if unknown:
        known = ", ".join(ABILITIES)
        raise ValueError(f"needs: no ability is called {unknown[0]!r}; choose from {known}")

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            device: Any = signature.bind(*args, **kwargs).arguments["device"]
            reason = lacking(device.name, device.capabilities, abilities)
            if reason:
                pytest.skip(reason)
            test(*args, **kwargs)

        return checked

    return decorate


def lacking(name: str, capabilities: Capabilities, abilities: tuple[str, ...]) -> str:
    """Describe which of `abilities` the device `name` lacks; empty if it has all of them."""
    missing = [ABILITIES[a] for a in abilities if not getattr(capabilities, a)]
    return f"{name} has no {' and no '.join(missing)}" if missing else ""
