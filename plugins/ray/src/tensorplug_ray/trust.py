"""Settings of Ray that must stand before Ray is imported: authentication first of all."""

import os
import stat
import sys
from pathlib import Path

from tensorplug.errors import OptionError
from tensorplug_ray.config import OWN, Config

_MODE = "RAY_AUTH_MODE"
_TOKEN = "RAY_AUTH_TOKEN"
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_SETTINGS = {
    # Values of up to this number of bytes travel with a call. Through the object store the logits
    # of a token took three times as long.
    "RAY_max_direct_call_object_size": str(1 << 20),
    # The driver reports a lost actor; Ray would print each unread error, too.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Actors compute as a local device does: Ray's would let every other program go first.
    "RAY_worker_niceness": "0",
    # Ray would hide the GPUs of a node from actors that reserve none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare(config: Config) -> None:
    """Set what Ray reads when it is imported; check who else could use the cluster.

    Raises OptionError for a cluster without authentication and for a token that others can read.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if config.insecure:
        return
    if _MODE not in os.environ and "ray" not in sys.modules:
        os.environ[_MODE] = "token"
    mode = authentication()
    if mode != "token":
        raise OptionError(
            f"ray: {_MODE} is {mode}: whoever reaches the cluster can run programs on it; set it "
            "to token before ray is imported, or allow this with insecure=True"
        )
    if not os.environ.get(_TOKEN):
        _check_token(
            Path(os.environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token"), config
        )


def authentication() -> str:
    """How the cluster of this process authenticates: `token`, or `disabled`."""
    return os.environ.get(_MODE, "disabled")


def _check_token(path: Path, config: Config) -> None:
    if path.exists():
        shared = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if shared and hasattr(os, "getuid"):
            raise OptionError(
                f"ray: other users of this machine can read the token in {path}; run: "
                f"chmod 600 {path}"
            )
    elif config.address != OWN:
        raise OptionError(
            f"ray: there is no token in {path}, and the cluster at {config.address} asks for one; "
            "copy the file of its head node there, or set RAY_AUTH_TOKEN"
        )
    else:
        _make_token(path)


def _make_token(path: Path) -> None:
    """Make a token that only this user can read: Ray would make one that others can."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(os.urandom(32).hex())
