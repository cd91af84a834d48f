"""What is missing on a machine. Imports nothing of Metal's."""

import importlib.util
import platform

OLDEST = (13, 0)
"""The first macOS with Metal 3, whose language the kernels are written in."""


def missing() -> str:
    """Why there can be no device here, and what to do; empty where there may be one."""
    if platform.system() != "Darwin":
        return "requires macOS"
    known = version()
    if known < OLDEST:
        needed, found = (".".join(map(str, v)) for v in (OLDEST, known))
        return f"requires macOS {needed} for Metal 3, and this is {found}; update the system"
    if importlib.util.find_spec("Metal") is None:
        return "PyObjC's Metal is not installed; pip install pyobjc-framework-Metal"
    return ""


def version() -> tuple[int, ...]:
    """The version of macOS, such as (15, 1); () on other systems."""
    return tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2] if part.isdecimal())
