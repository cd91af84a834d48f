"""Captured launches, whose arguments may change: new addresses go to the nodes of the graph.

CuPy captures graphs and launches them, but cannot change them; cuda-bindings can. Without it, a
plan that is bound anew is captured anew.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from cuda.bindings import driver
except ImportError:
    driver = None

if TYPE_CHECKING:
    from tensorplug_cuda.plan import Ready


class Captured:
    """A CUDA graph of launches, with the node of each where they are known."""

    def __init__(
        self, graph: Any, launches: "Sequence[Ready]", nodes: Sequence[Any] | None
    ) -> None:
        self._graph = graph
        self._launches = launches
        self._nodes = nodes

    def launch(self, stream: Any) -> None:
        """Queue all of them."""
        self._graph.launch(stream)

    def rebind(self, launches: "Sequence[Ready]") -> bool:
        """Let future launches have the arguments of `launches`; those queued so far keep theirs.

        False where it cannot be done: then the graph is of no use any more.
        """
        if self._nodes is None or not _differ_in_arguments(self._launches, launches):
            return False
        try:
            execution = driver.CUgraphExec(self._graph.graphExec)
            for node, old, new in zip(self._nodes, self._launches, launches, strict=True):
                values = _values(new)
                if values != _values(old):
                    _set_arguments(execution, node, values)
        except RuntimeError:
            # One of the driver's, or cuda-bindings do not fit it.
            return False
        self._launches = launches
        return True


def newest(stream: Any) -> Any:
    """The node of what was queued last on a stream that captures; None where nobody can tell."""
    if driver is None:
        return None
    try:
        answer = _checked(driver.cuStreamGetCaptureInfo(driver.CUstream(stream.ptr)))
    except RuntimeError:
        return None
    # Its state, number and graph; what there is between the nodes and their number varies.
    _, _, _, nodes, *_, many = answer
    return nodes[0] if many == 1 else None


def _differ_in_arguments(old: "Sequence[Ready]", new: "Sequence[Ready]") -> bool:
    """Whether launches are the same but for their arguments."""
    return len(old) == len(new) and all(
        a.function is b.function and a.groups == b.groups and a.local == b.local
        for a, b in zip(old, new, strict=True)
    )


def _values(launch: "Ready") -> list[bytes]:
    """The arguments as the driver takes them: addresses of memory, all others as they are."""
    values = (np.uint64(a.ptr) if hasattr(a, "ptr") else a for a in launch.arguments)
    return [value.tobytes() for value in values]


def _set_arguments(execution: Any, node: Any, values: Sequence[bytes]) -> None:
    (parameters,) = _checked(driver.cuGraphKernelNodeGetParams(node))
    held = [np.frombuffer(value, np.uint8) for value in values]
    places = np.array([value.ctypes.data for value in held], np.uint64)
    parameters.kernelParams = places.ctypes.data
    _checked(driver.cuGraphExecKernelNodeSetParams(execution, node, parameters))


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a function of the driver returns after its status. Raises RuntimeError."""
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"CUDA: {status}")
    return tuple(rest)
