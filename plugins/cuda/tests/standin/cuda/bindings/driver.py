"""The driver's own functions for graphs, as versions 12 and 13 of cuda-bindings have them.

Each returns a tuple that begins with its status. `version` is that of the answers.
"""

import ctypes
import enum
from typing import Any

import numpy as np
from cupy._kernels import Launch
from cupy._machine import CUDARuntimeError, machine

version = 13
NODES = 1 << 32
"""Handles of nodes: that of their graph times this, and their place."""


class CUresult(enum.IntEnum):
    """Statuses."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_HANDLE = 400


class _Handle:
    def __init__(self, value: int = 0) -> None:
        self._value = int(value)

    def __int__(self) -> int:
        return self._value


class CUgraph(_Handle):
    """A graph."""


class CUgraphExec(_Handle):
    """A graph that can be launched."""


class CUgraphNode(_Handle):
    """A node of a graph."""


class CUstream(_Handle):
    """A stream."""


class CUDA_KERNEL_NODE_PARAMS:
    """What a kernel node is launched with. It has these attributes alone."""

    __slots__ = (
        "_params", "blockDimX", "blockDimY", "blockDimZ", "ctx", "extra", "func",
        "gridDimX", "gridDimY", "gridDimZ", "kern", "sharedMemBytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._params = self.extra = self.sharedMemBytes = 0
        self.ctx = self.kern = 0

    @property
    def kernelParams(self) -> int:
        """The address of an array with the address of each argument."""
        return self._params

    @kernelParams.setter
    def kernelParams(self, value: Any) -> None:
        if not isinstance(value, int):
            raise TypeError("Argument 'kernelParams' is not a valid type: an int is")
        self._params = value


def cuStreamGetCaptureInfo(hStream: CUstream) -> tuple[Any, ...]:
    queue = machine.queues.get(int(hStream))
    if queue is None:
        return CUresult.CUDA_ERROR_INVALID_HANDLE, None, None, None, [], 0
    capture = queue.capture
    if capture is None:
        return CUresult.CUDA_SUCCESS, 0, 0, CUgraph(), [], *([[]] if version >= 13 else []), 0
    found = [_handle(capture, number) for number in queue.front]
    edges = [[None] * len(found)] if version >= 13 else []
    return (
        CUresult.CUDA_SUCCESS, 1, capture.handle, CUgraph(capture.handle), found, *edges, len(found)
    )  # fmt: skip


def cuGraphKernelNodeGetParams(hNode: CUgraphNode) -> tuple[Any, ...]:
    graph, place = _node(hNode)
    if graph is None or not isinstance(graph.captured.jobs[place], Launch):
        return CUresult.CUDA_ERROR_INVALID_VALUE, None
    found, job = CUDA_KERNEL_NODE_PARAMS(), graph.captured.jobs[place]
    found.func = job.function
    found.gridDimX, found.gridDimY, found.gridDimZ = job.grid
    found.blockDimX, found.blockDimY, found.blockDimZ = job.block
    return CUresult.CUDA_SUCCESS, found


def cuGraphExecKernelNodeSetParams(
    hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: CUDA_KERNEL_NODE_PARAMS
) -> tuple[Any, ...]:
    if not isinstance(nodeParams, CUDA_KERNEL_NODE_PARAMS):
        raise TypeError("Argument 'nodeParams' has incorrect type")
    graph, place = _node(hNode)
    if graph is None or graph.graphExec != int(hGraphExec):
        return (CUresult.CUDA_ERROR_INVALID_HANDLE,)
    job = graph.captured.jobs[place]
    sizes = nodeParams.gridDimX, nodeParams.gridDimY, nodeParams.gridDimZ
    if nodeParams.func is not job.function or sizes != job.grid or not nodeParams.kernelParams:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    count = len(job.values)
    places = (ctypes.c_uint64 * count).from_address(nodeParams.kernelParams)
    values = [
        bytes(np.ctypeslib.as_array((ctypes.c_uint8 * len(old)).from_address(place)))
        for old, place in zip(job.values, places, strict=True)
    ]
    try:
        graph.captured.jobs[place] = job.with_values(values)
    except CUDARuntimeError:
        # A GPU would fail when it is launched; nobody means to.
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    machine.node_updates += 1
    return (CUresult.CUDA_SUCCESS,)


def _handle(capture: Any, number: int) -> CUgraphNode:
    return CUgraphNode(capture.handle * NODES + number + 1)


def _node(handle: CUgraphNode) -> tuple[Any, int]:
    """The graph of a node, and the place of its job."""
    graph, place = divmod(int(handle), NODES)
    return machine.graphs.get(graph), place - 1
