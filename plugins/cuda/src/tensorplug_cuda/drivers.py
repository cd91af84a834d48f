"""What is missing on a machine. Loads the driver's library at most, and never starts it.

A process that has started the driver cannot fork any more, so the driver starts when a GPU is first
used: asking for versions does not start it.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

NEEDS: Mapping[str, int] = MappingProxyType({"cupy-cuda12x": 12000, "cupy-cuda13x": 13000})
"""The oldest driver of each distribution of CuPy, by the version of CUDA that it supports."""
LIBRARIES: Mapping[str, str] = MappingProxyType({"linux": "libcuda.so.1", "win32": "nvcuda.dll"})
"""The driver's library by system."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The driver's own variable: which GPUs a process sees; empty or -1 for none."""
DEVICES = Path("/dev")
NODES = ("nvidia[0-9]*", "dxg", "nvmap")
"""Device files of GPUs: those of Linux, of Linux inside Windows, and of Tegra."""


def missing() -> str:
    """Why there can be no device here, and what to do; empty where there may be one."""
    if importlib.util.find_spec("cupy") is None:
        return (
            'CuPy is not installed; pip install "tensorplug-cuda[cuda13]", or [cuda12] for a '
            "driver that does not support CUDA 13"
        )
    supported = driver_version()
    if supported is None:
        library = LIBRARIES.get(sys.platform, "the driver")
        return f"no NVIDIA driver: {library} cannot be loaded; install the driver of your GPU"
    return _too_old(supported) or _nothing_visible()


def driver_version() -> int | None:
    """The newest CUDA that the driver supports, such as 13020 for 13.2; None without a driver."""
    try:
        driver = ctypes.CDLL(LIBRARIES[sys.platform])
        version = ctypes.c_int(0)
        failed = driver.cuDriverGetVersion(ctypes.byref(version))
    except (KeyError, OSError, AttributeError):
        return None
    return None if failed else version.value


def written(version: int) -> str:
    """A version of CUDA as people write it: `13.2` for 13020."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _too_old(supported: int) -> str:
    """Why the installed CuPy cannot use the driver; empty where it can."""
    installed = [name for name in NEEDS if _is_installed(name)]
    if not installed or any(NEEDS[name] <= supported for name in installed):
        return ""
    remedy = f"update the driver to one that supports CUDA {written(NEEDS[installed[0]])}"
    if NEEDS["cupy-cuda12x"] <= supported:
        remedy += f', or pip uninstall {installed[0]} and pip install "tensorplug-cuda[cuda12]"'
    return (
        f"the driver supports CUDA {written(supported)} and is too old for {installed[0]}; {remedy}"
    )


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _nothing_visible() -> str:
    """Why the driver will have no device; empty where it may have one."""
    visible = os.environ.get(VISIBLE)
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return f"{VISIBLE}={visible!r} hides every GPU; unset it or name one"
    if sys.platform == "linux" and not any(any(DEVICES.glob(name)) for name in NODES):
        return f"no GPU: {DEVICES} has no nvidia0; look at nvidia-smi, or give the container a GPU"
    return ""
