"""Facts about the machine: processor, memory, NUMA nodes."""

import ctypes
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

from tensorplug.device import Memory


@cache
def processor_name() -> str:
    """The processor's model name as its maker spells it, or at least its architecture."""
    named = {"linux": _linux_processor, "darwin": _mac_processor}.get(sys.platform)
    return (named() if named else "") or platform.processor() or platform.machine() or "CPU"


def _linux_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return ""


def _mac_processor() -> str:
    asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(
            asked, capture_output=True, check=False, text=True, timeout=5
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def memory() -> Memory:
    """Bytes that are available without swapping, and bytes in all; zeros where both are unknown."""
    ask = {"linux": _linux_memory, "win32": _windows_memory}.get(sys.platform, _posix_memory)
    return ask()


def _linux_memory() -> Memory:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _posix_memory()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if " kB" in line}
    if "MemTotal" not in sizes:
        return _posix_memory()
    return Memory(sizes.get("MemAvailable", sizes.get("MemFree", 0)), sizes["MemTotal"])


def _posix_memory() -> Memory:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return Memory(0, 0)
    try:
        return Memory(page * os.sysconf("SC_AVPHYS_PAGES"), total)
    except (OSError, ValueError):  # macOS tells the total only
        return Memory(total, total)


class _WindowsMemory(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 5),
    ]


def _windows_memory() -> Memory:
    status = _WindowsMemory(length=ctypes.sizeof(_WindowsMemory))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - the name exists on Windows only
    if not kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
        return Memory(0, 0)
    return Memory(int(status.available), int(status.total))


def numa_nodes() -> int:
    """How many NUMA nodes the machine has; 1 where the system does not say."""
    root = Path("/sys/devices/system/node")
    return max(1, sum(entry.name[4:].isdigit() for entry in root.glob("node*")))
