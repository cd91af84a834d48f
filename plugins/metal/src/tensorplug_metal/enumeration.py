"""The GPUs of a Mac as devices. Imports Metal."""

import importlib.metadata
import logging
from typing import Any

import Metal

from tensorplug.device import DeviceError, TensorplugError
from tensorplug.device.buffer import human
from tensorplug_metal import system
from tensorplug_metal.device import MetalDevice
from tensorplug_metal.facts import OLDEST, gpu
from tensorplug_metal.probe import probe

logger = logging.getLogger("tensorplug.metal")


def devices() -> list[MetalDevice]:
    """Every GPU on which a kernel runs, in Metal's order. Raises DeviceError where none does.

    Others are left out with a warning.
    """
    found: list[MetalDevice] = []
    errors: list[TensorplugError] = []
    for handle in Metal.MTLCopyAllDevices():
        try:
            found.append(probed(f"metal:{len(found)}", handle))
        except TensorplugError as error:
            logger.warning("a GPU is left out: %s", error)
            errors.append(error)
    if errors and not found:
        raise DeviceError(f"no GPU works: {errors[0]}") from errors[0]
    return found


def probed(name: str, handle: Any) -> MetalDevice:
    """A device, once it has computed something. Raises DeviceError."""
    known = gpu(handle)
    if known.family < OLDEST:
        raise DeviceError(
            f"{known.name}: kernels need a GPU of Apple's family {OLDEST} or later (M1)"
        )
    probe(handle, known.name)
    logger.info("%s: %s, %s of memory", name, known, human(known.working_set))
    return MetalDevice(name, handle, known)


def features() -> dict[str, str]:
    """Versions, and what each GPU is, for `tensorplug info`."""
    known = {"macos": ".".join(map(str, system.version()))}
    try:
        known["pyobjc"] = importlib.metadata.version("pyobjc-framework-Metal")
    except importlib.metadata.PackageNotFoundError:
        known["pyobjc"] = "emulated" if getattr(Metal, "EMULATED", False) else "unknown"
    gpus = enumerate(Metal.MTLCopyAllDevices())
    return known | {f"gpu {i}": str(gpu(handle)) for i, handle in gpus}
