"""What both sides must have in common: versions and the op table."""

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from tensorplug.errors import DeviceError
from tensorplug.ops.table import OPS, Op

Identity = Mapping[str, str]


def identity() -> Identity:
    """The versions of this process, and a digest of core's ops.

    Ops of other distributions have a dot in their names. One that the actor does not know is
    refused where it is used.
    """
    found = {name: version(name) for name in ("tensorplug", "tensorplug-ray")}
    return {**found, "ops": _digest(OPS[name] for name in sorted(OPS) if "." not in name)}


def check_alike(name: str, here: Identity, there: Identity, node: str) -> None:
    """Raise DeviceError if two identities differ."""
    for what, ours in here.items():
        theirs = there.get(what, "none")
        if ours != theirs:
            raise DeviceError(
                f"{name}: {node} has {what} {theirs}, this machine has {what} {ours}; install the "
                "same versions of tensorplug and of the distributions with ops on both"
            )


def _digest(ops: Iterable[Op]) -> str:
    found = hashlib.sha256()
    for op in ops:
        sources = [(s.name, s.optional) for s in op.sources]
        params = [(p.name, p.kind.__name__, repr(p.default), p.required) for p in op.params]
        found.update(repr((op.name, sources, params, op.formula)).encode())
    return found.hexdigest()[:12]
