"""Drivers: where they are, what is missing, and the devices that they have.

The loader inside PyOpenCL reads the files `*.icd` of `/etc/OpenCL/vendors`, each with the path of a
driver. A driver that pip installed has no file there: a new folder gets a file for it, and links to
the system's files, and the loader is told of this folder before it first looks.
"""

import atexit
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SYSTEM = Path("/etc/OpenCL/vendors")
PACKAGED: Mapping[str, str] = {"intel-opencl-rt": "libintelocl.so"}
"""Drivers that pip installs: distribution and library."""
VENDORS = "OCL_ICD_VENDORS"
POCL_CACHE = "POCL_CACHE_DIR"

logger = logging.getLogger("tensorplug.opencl")


def missing() -> str:
    """Why there can be no device here, and what to do; empty where there may be one."""
    if importlib.util.find_spec("pyopencl") is None:
        return "PyOpenCL is not installed; pip install pyopencl"
    if sys.platform != "linux" or VENDORS in os.environ:
        return ""
    if any(_system_files()) or any(_packaged_libraries()):
        return ""
    return (
        f"no OpenCL driver: {SYSTEM} holds none; install your GPU's, or for the processor "
        "`pip install tensorplug-opencl[cpu]` (x86-64) or the package pocl-opencl-icd"
    )


@cache
def devices() -> "tuple[Any, ...]":
    """Every device of every platform: GPUs, then accelerators, then processors."""
    find_packaged()
    settle_caches()
    import pyopencl as cl  # noqa: PLC0415 - loads the drivers

    try:
        platforms = cl.get_platforms()
    except cl.LogicError as error:
        if "PLATFORM_NOT_FOUND" in str(error):
            return ()
        raise
    found = [device for platform in platforms for device in _devices_of(platform)]
    kinds = cl.device_type
    order = {kinds.GPU: 0, kinds.ACCELERATOR: 1, kinds.CPU: 2}
    return tuple(sorted(found, key=lambda device: order.get(device.type & ~kinds.DEFAULT, 3)))


def _devices_of(platform: Any) -> "list[Any]":
    import pyopencl as cl  # noqa: PLC0415 - loads the drivers

    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices says so by an error
        return []


def features() -> dict[str, str]:
    """Versions for `tensorplug info`."""
    platforms = {device.platform.name: device.platform.version for device in devices()}
    return {"pyopencl": importlib.metadata.version("pyopencl"), **platforms}


def find_packaged() -> None:
    """Tell the loader of drivers that pip installed. Does nothing where the user chose drivers."""
    libraries = list(_packaged_libraries())
    if not libraries or VENDORS in os.environ or sys.platform != "linux":
        return
    try:
        folder = _temporary()
    except OSError as error:
        logger.warning("opencl: drivers that pip installed are not found: %s", error)
        return
    for file in _system_files():
        (folder / file.name).symlink_to(file)
    for i, library in enumerate(libraries):
        (folder / f"packaged{i}.icd").write_text(f"{library}\n", encoding="utf-8")
    os.environ[VENDORS] = str(folder)


def settle_caches() -> None:
    """Keep caches of others from deciding which devices there are, and which programs start.

    PyOpenCL unpickles what it finds among the user's files, and cannot make a kernel where it
    cannot write there; PoCL has no device where it cannot. Variables that are set stay.
    """
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    if POCL_CACHE in os.environ or sys.platform == "win32":
        return
    try:
        named = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(named) if named else Path.home() / ".cache") / "pocl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        pass
    with suppress(OSError):
        os.environ[POCL_CACHE] = str(_temporary())


def _temporary() -> Path:
    """A folder that goes with this process. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="tensorplug-opencl-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a child's to delete, which may end first
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _system_files() -> Iterator[Path]:
    return SYSTEM.glob("*.icd") if SYSTEM.is_dir() else iter(())


def _packaged_libraries() -> Iterator[Path]:
    for distribution, library in PACKAGED.items():
        try:
            files = importlib.metadata.files(distribution) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        yield from (Path(str(f.locate())).resolve() for f in files if f.name == library)
