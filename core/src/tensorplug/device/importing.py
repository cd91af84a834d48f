"""Tensors over the memory of arrays of other libraries."""

import logging
from typing import Any

from tensorplug.device.abilities import SupportsHostImport
from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferUsage
from tensorplug.device.foreign import as_host, is_on_host
from tensorplug.device.placing import place, place_in
from tensorplug.errors import ShapeError, TensorplugError, Unsupported
from tensorplug.graph.tensor import Tensor, leaf

log = logging.getLogger("tensorplug")


def from_dlpack(
    array: Any,
    stream: Backend,
    *,
    name: str = "",
    copy: bool | None = None,
) -> Tensor:
    """Return a persistent tensor over the memory of `array`, for the device of `stream`.

    `array` is an array of NumPy, PyTorch, CuPy, JAX or any library with `__dlpack__`. Its memory is
    used where it lies if the host reads it, it is contiguous and the device imports host memory; a
    device that shares the host's memory, such as cpu, then sees every write of its owner. Otherwise
    it is copied once, and the log says why at level DEBUG. `copy=True` always copies; `copy=False`
    raises Unsupported instead.

        w = tp.from_dlpack(torch.ones(3, 4), cpu, name="w")

    >>> with tp.open("cpu") as cpu:
    ...     tp.from_dlpack(np.ones((3, 4), np.float32), cpu, name="w").shape
    (3, 4)
    """
    label = name or "from_dlpack()"
    if copy:
        return place(name, array, stream.buffer_type, usage=BufferUsage.WEIGHTS)
    try:
        return _imported(array, stream, name)
    except (Unsupported, ShapeError) as error:
        if copy is False:
            raise Unsupported(
                f"{label}: {stream.device.name} cannot use this memory without a copy: {error}; "
                "leave out copy=False"
            ) from error
        log.debug("%s: copied to %s: %s", label, stream.device.name, error)
        return place(name, array, stream.buffer_type, usage=BufferUsage.WEIGHTS)


def _imported(array: Any, stream: Backend, name: str) -> Tensor:
    """A tensor in imported memory. Raises Unsupported, ShapeError."""
    device = stream.device
    if not is_on_host(array):
        raise Unsupported("the host does not read it")
    if not isinstance(device, SupportsHostImport):
        raise Unsupported("the device does not import host memory")
    data, kind = as_host(array)
    if not data.flags.c_contiguous or not data.size:
        raise Unsupported("it is empty or not contiguous")
    buffer = device.import_host(data)
    try:
        if data.ctypes.data % buffer.type.alignment:
            raise Unsupported(f"it does not start at a multiple of {buffer.type.alignment} bytes")
        buffer.usage = BufferUsage.WEIGHTS
        return place_in(leaf(name, data.shape, kind), buffer, 0)
    except TensorplugError:
        buffer.close()
        raise
