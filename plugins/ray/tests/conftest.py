"""A cluster of Ray for each module, on this machine, with a token of its own."""

import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator

import pytest

MISSING = (
    importlib.util.find_spec("ray") is None or importlib.util.find_spec("tensorplug_ray") is None
)
collect_ignore_glob = ["test_*.py"] if MISSING else []
"""The environment of the README's commands has no Ray: `uv sync --group ray`."""

OWN_CLUSTER = "RAY_ADDRESS" not in os.environ
"""Tests may use a cluster that runs already, with the token of this user: it starts in no time."""

if not MISSING and OWN_CLUSTER:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Callable[..., list]]:
    """A function that opens devices in a cluster, which ends with the module."""
    from tensorplug_ray import trust
    from tensorplug_ray.config import Config, entries

    found = []

    def open_devices(*specs: str, limit: float = 0) -> list:
        config = Config(entries(specs), os.environ.get("RAY_ADDRESS", "local"), limit=limit)
        trust.prepare(config)
        from tensorplug_ray.device import devices_of

        devices = devices_of(config)
        found.extend(devices)
        return devices

    yield open_devices
    for device in found:
        device.close(force=True)
    import ray

    ray.shutdown()
