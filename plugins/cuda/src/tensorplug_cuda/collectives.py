"""Sums over several GPUs by NCCL, where CuPy finds that.

Not measured on GPUs. To remove it, delete this file and `CudaDevice.all_reduce`: devices made of
several then add by copies.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cupy.cuda import nccl

from tensorplug.device import DeviceError, Place, Tensor
from tensorplug.dtypes import F32
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.memory import CudaBuffer

if TYPE_CHECKING:
    from tensorplug_cuda.backend import CudaBackend

_lock = threading.Lock()
_communicators: dict[tuple[int, ...], list[Any]] = {}
"""By the numbers of the GPUs. Making them takes seconds, so they stay."""


def all_reduce(backends: "Sequence[CudaBackend]", places: Sequence[Place], node: Tensor) -> bool:
    """Queue the sum of the f32 tensors like `node` at `places` into each of them.

    False where NCCL is missing, where two of the devices are parts of one GPU, or where it does not
    take the tensor. Raises DeviceError.
    """
    ordinals = tuple(backend.device.ordinal for backend in backends)
    plain = node.dtype is F32 and node.is_contiguous
    if not (nccl.available and plain and len(set(ordinals)) == len(ordinals)):
        return False
    addresses = [p.buffer.address + p.offset for p in places if isinstance(p.buffer, CudaBuffer)]
    names = ", ".join(backend.name for backend in backends)
    doing = f"{names}: sum of {node} by NCCL"
    # Groups are the process's: two threads would join theirs.
    with _lock, driver_errors(doing):
        try:
            if ordinals not in _communicators:
                _communicators[ordinals] = nccl.NcclCommunicator.initAll(list(ordinals))
            nccl.groupStart()
            try:
                where = zip(_communicators[ordinals], backends, addresses, strict=True)
                for communicator, backend, address in where:
                    how = (node.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, backend.stream.ptr)
                    communicator.allReduce(address, address, *how)
            finally:
                nccl.groupEnd()
        except nccl.NcclError as theirs:
            raise DeviceError(f"{doing}: {theirs}") from theirs
    return True
