"""Settings of backends: environment variables whose values come from a list."""

import os

from tensorplug.device import OptionError


def setting(name: str, *known: str) -> str:
    """The value of an environment variable, by default the first of `known`. Raises OptionError."""
    value = os.environ.get(name, "").strip() or known[0]
    if value not in known:
        raise OptionError(f"{name}={value!r}: choose from {', '.join(known)}")
    return value


def is_portable(backend: str) -> bool:
    """True if the user leaves out the own kernels of `backend`. Raises OptionError.

    `TENSORPLUG_OPENCL_KERNELS=portable` leaves out those of opencl, for example.
    """
    return setting(f"TENSORPLUG_{backend.upper()}_KERNELS", "own", "portable") == "portable"
