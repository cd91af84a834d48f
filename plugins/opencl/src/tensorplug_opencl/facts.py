"""Facts about a device, as its driver tells them."""

import os
from platform import machine
from typing import Any

import pyopencl as cl

from tensorplug.device import DeviceType
from tensorplug_opencl.kernels.variants import VARIANTS
from tensorplug_simt.facts import Facts
from tensorplug_simt.settings import setting

WIDE = "TENSORPLUG_OPENCL_WIDE"
"""Set to 0, processors get the kernels of GPUs; set to 1, GPUs get those of processors."""

REQUIRED = "cl_intel_required_subgroup_size"

LIMITS = "TENSORPLUG_OPENCL_LIMITS"
"""Set to `device`, kernels may take as many items and as much local memory as the device grants."""

ACTIVATIONS = "TENSORPLUG_OPENCL_ACTIVATIONS"
"""Whether products may round rows of `x` to 8 bits: `int8` or `f32`; `rounds` is the default."""
POCL = "Portable Computing Language"
"""What PoCL calls its platform."""

PRODUCTS = "TENSORPLUG_OPENCL_PRODUCTS"
"""The variant of a product to take where it is valid; by default the facts choose."""

SMALLEST = 128
"""Items that groups of the kernels of GPUs may have; other devices get those of processors."""
MAX_GROUP = 256
LOCAL_MEMORY = 32 * 1024
"""What kernels may take of a group's items and memory: processors offer far more than GPUs do."""


def facts_of(driver: Any) -> Facts:
    """What lowerings may know of a device. Raises OptionError for settings that mean nothing."""
    extensions = driver.extensions.split()
    lifted = setting(LIMITS, "gpu", "device") == "device"
    group = 1 << int(driver.max_work_group_size).bit_length() - 1
    memory = int(driver.local_mem_size)
    style = style_forced()
    wide = style == "1" if style else group < SMALLEST or bool(driver.type & cl.device_type.CPU)
    activations = ("int8", "f32") if wide and rounds(driver) else ("f32", "int8")
    newer = version_of(driver) >= (2, 0)
    return Facts(
        wide=wide,
        max_group=group if lifted else min(group, MAX_GROUP),
        local_memory=memory if lifted else min(memory, LOCAL_MEMORY),
        subgroup=_subgroup(driver, extensions) if newer else 0,
        subgroup_required=REQUIRED in extensions,
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions,
        int_dot=newer and "cl_khr_integer_dot_product" in extensions,
        int8_activations=setting(ACTIVATIONS, *activations) == "int8",
        units=int(driver.max_compute_units),
        variant=setting(PRODUCTS, "", *VARIANTS),
    )


def rounds(driver: Any) -> bool:
    """Whether products with rows of bytes are faster on a processor than those with floats.

    They are where the driver's compiler has the instructions of x86-64 that multiply bytes. Intel's
    has not.
    """
    return driver.platform.name == POCL and machine() in ("x86_64", "AMD64")


def version_of(driver: Any) -> tuple[int, int]:
    """The version of OpenCL that a device has."""
    major, minor = driver.version.split()[1].split(".")[:2]
    return int(major), int(minor)


def style_forced() -> str:
    """`0` or `1` where the user wants the kernels of GPUs or of processors; else empty."""
    return os.environ.get(WIDE, "").strip()


def _subgroup(driver: Any, extensions: list[str]) -> int:
    """Items of a sub-group; 0 where kernels cannot add up values within one.

    NVIDIA's driver knows warps but no sub-groups.
    """
    if REQUIRED in extensions:
        return 16
    if "cl_khr_subgroups" not in extensions and not _ask(driver, "max_num_sub_groups"):
        return 0
    return int(_ask(driver, "wavefront_width_amd") or 32)


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
