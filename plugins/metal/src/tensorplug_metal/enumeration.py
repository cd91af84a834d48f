"""The GPUs of a Mac as devices. Imports Metal."""

import importlib.metadata
import logging
from typing import Any

import Metal
import numpy as np

import tensorplug
from tensorplug.device import DeviceError, Part, Place, TensorplugError
from tensorplug.text import human
from tensorplug_metal import system
from tensorplug_metal.device import MetalDevice
from tensorplug_metal.facts import OLDEST, gpu

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
    """A device, once it has computed a sum. Raises DeviceError, OutOfMemory."""
    known = gpu(handle)
    if known.family < OLDEST:
        raise DeviceError(
            f"{known.name}: kernels need a GPU of Apple's family {OLDEST} or later (M1)"
        )
    device = MetalDevice(name, handle, known)
    try:
        if not _adds_up(device):
            raise DeviceError(f"{name}: a kernel computed something else than it should have")
    except TensorplugError:
        device.close()
        raise
    logger.info("%s: %s, %s of memory", name, known, human(known.working_set))
    return device


def _adds_up(device: MetalDevice) -> bool:
    """Whether a GPU adds up 32 numbers rightly, to see that it works at all."""
    x = tensorplug.input("x", (32,), tensorplug.F32)
    y = tensorplug.sum_rows(x)
    with device.open() as stream, device.buffer_type.alloc(256) as buffer:
        buffer.write(0, np.arange(32, dtype=np.float32))
        places = {x: Place(buffer, 0), y: Place(buffer, 128)}
        stream.compute(Part.of(tensorplug.Graph(y), tensorplug.Bindings(places)))
        return bool(buffer.read(128, 4).view(np.float32) == 496)


def features() -> dict[str, str]:
    """Versions, and what each GPU is, for `tensorplug info`."""
    known = {"macos": ".".join(map(str, system.version()))}
    try:
        known["pyobjc"] = importlib.metadata.version("pyobjc-framework-Metal")
    except importlib.metadata.PackageNotFoundError:
        known["pyobjc"] = "emulated" if getattr(Metal, "EMULATED", False) else "unknown"
    gpus = enumerate(Metal.MTLCopyAllDevices())
    return known | {f"gpu {i}": str(gpu(handle)) for i, handle in gpus}
