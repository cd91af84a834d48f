"""Rows of matrices over several GPUs: ggml's split buffer type, in terms of a meta device."""

from collections.abc import Sequence

from tensorplug import meta
from tensorplug.device import BufferType, Device, OptionError
from tensorplug_cuda.device import CudaDevice

SYMBOL = "ggml_backend_split_buffer_type"
"""What ggml calls it, for `get_proc_address`."""


def split_buffer_type(
    devices: Sequence[Device], tensor_split: Sequence[float] | None = None
) -> BufferType:
    """Memory in which rows of matrices lie on GPUs in the proportions of `tensor_split`.

    Without proportions, and where all are 0, they are those of free memory. Vectors lie on each
    GPU. The memory's `device` computes on it: each GPU its rows of a product. Raises OptionError.
    """
    if not isinstance(devices, Sequence):
        raise OptionError(
            f"{SYMBOL}: {devices!r} as the main device; here all GPUs compute, each its rows: give "
            "devices, such as tensorplug.devices_of('cuda'), and schedule on a stream of the "
            "memory's device"
        )
    others = [device.name for device in devices if not isinstance(device, CudaDevice)]
    if others:
        raise OptionError(f"{SYMBOL}: {', '.join(others)}: no device of cuda; use meta.device")
    if tensor_split is not None and any(part < 0 for part in tensor_split):
        raise OptionError(f"{SYMBOL}: proportions {tuple(tensor_split)}; none may be negative")
    parts = list(tensor_split or ())
    if not any(parts):
        parts = [device.memory().free for device in devices]
    return meta.device(devices, "rows", ratio=parts).buffer_type
