"""Facts about a device, as its driver tells them."""

import os
from typing import Any

import pyopencl as cl

from tensorplug.device import DeviceType
from tensorplug_simt.facts import Facts

WIDE = "TENSORPLUG_OPENCL_WIDE"
"""Set to 0, processors get the kernels of GPUs; set to 1, GPUs get those of processors."""


def of(driver: Any) -> Facts:
    """What lowerings may know."""
    extensions = driver.extensions.split()
    wide = os.environ.get(WIDE, "").strip() or bool(driver.type & cl.device_type.CPU)
    return Facts(
        wide=wide not in ("0", False),
        max_group=min(int(driver.max_work_group_size), 256),
        local_memory=min(int(driver.local_mem_size), 32 * 1024),
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions,
        int_dot="cl_khr_integer_dot_product" in extensions,
        units=int(driver.max_compute_units),
    )


def extensions(driver: Any) -> str:
    """What a program must switch on before it uses it."""
    return ""


def device_type(driver: Any) -> DeviceType:
    """What kind of hardware the driver says it is."""
    kinds = cl.device_type
    if driver.type & kinds.GPU:
        return DeviceType.IGPU if driver.host_unified_memory else DeviceType.GPU
    return DeviceType.CPU if driver.type & kinds.CPU else DeviceType.ACCEL


def hardware_id(driver: Any) -> str:
    """The PCI address or the UUID of the hardware, or an empty string."""
    return ""
