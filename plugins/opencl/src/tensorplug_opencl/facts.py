"""Facts about a device, as its driver tells them."""

import os
from typing import Any

import pyopencl as cl

from tensorplug.device import DeviceType
from tensorplug_simt.facts import Facts

WIDE = "TENSORPLUG_OPENCL_WIDE"
"""Set to 0, processors get the kernels of GPUs; set to 1, GPUs get those of processors."""

MAX_GROUP = 256
LOCAL_MEMORY = 32 * 1024
"""What kernels may take of a group's items and memory: processors offer far more than GPUs do."""


def facts_of(driver: Any) -> Facts:
    """What lowerings may know of a device."""
    extensions = driver.extensions.split()
    forced = os.environ.get(WIDE, "").strip()
    return Facts(
        wide=forced == "1" if forced else bool(driver.type & cl.device_type.CPU),
        max_group=min(int(driver.max_work_group_size), MAX_GROUP),
        local_memory=min(int(driver.local_mem_size), LOCAL_MEMORY),
        subgroup=_subgroup(driver, extensions),
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions,
        int_dot="cl_khr_integer_dot_product" in extensions,
        units=int(driver.max_compute_units),
    )


def _subgroup(driver: Any, extensions: list[str]) -> int:
    """Items that exchange values without barriers, where kernels can rely on a number of them."""
    if "cl_intel_required_subgroup_size" in extensions:
        return 16
    for name in ("warp_size_nv", "wavefront_width_amd"):
        size = _ask(driver, name)
        if size:
            return int(size)
    return 0


def device_type(driver: Any) -> DeviceType:
    """What kind of hardware the driver says it is."""
    kinds = cl.device_type
    if driver.type & kinds.GPU:
        return DeviceType.IGPU if driver.host_unified_memory else DeviceType.GPU
    return DeviceType.CPU if driver.type & kinds.CPU else DeviceType.ACCEL


def hardware_id(driver: Any) -> str:
    """The PCI address, where the driver tells it; else an empty string."""
    bus, slot = _ask(driver, "pci_bus_id_nv"), _ask(driver, "pci_slot_id_nv")
    if bus is not None and slot is not None:
        domain = _ask(driver, "pci_domain_id_nv") or 0
        return f"{domain:04x}:{bus:02x}:{slot >> 3:02x}.{slot & 7}"
    place = _ask(driver, "topology_amd")
    if place is not None:
        return f"0000:{place.bus & 255:02x}:{place.device:02x}.{place.function}"
    return ""


def _ask(driver: Any, name: str) -> Any:
    """A fact that only some drivers know, or None."""
    try:
        return getattr(driver, name)
    except (AttributeError, cl.Error):
        return None
