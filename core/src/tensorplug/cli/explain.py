"""`tensorplug explain`: schedules a graph and shows which device runs each node, and why."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tensorplug.device.backend import Backend
from tensorplug.device.buffer import BufferUsage
from tensorplug.device.device import DeviceType
from tensorplug.dtypes import F32
from tensorplug.graph.graph import Graph
from tensorplug.graph.tensor import input
from tensorplug.inspect.graphfile import load
from tensorplug.ops import relu, soft_max
from tensorplug.registry import Registry
from tensorplug.running import Explanation, Scheduler


def explain(
    registry: Registry, path: Path | None, specs: Sequence[str], ahead: int | None = None
) -> Explanation:
    """Schedule a graph and return the explanation.

    The graph comes from the graph file `path`, by default it is a small example. `specs` are device
    strings, by default all devices in order of preference. With `ahead`, the work of all devices is
    arranged in stages with this look-ahead.
    """
    with ExitStack() as stack:
        backends = [stack.enter_context(b) for b in _open(registry, specs)]
        graph = example(backends) if path is None else load(path, memory=backends[0].buffer_type)
        scheduler = stack.enter_context(Scheduler(backends, ahead=ahead))
        with scheduler.schedule(graph) as schedule:
            return schedule.explain()


def example(backends: Sequence[Backend]) -> Graph:
    """A small network block, with weights in the memory of the first device and of the last."""
    random = np.random.default_rng(0)
    up, down = (
        backend.place(name, random.normal(size=shape).astype(np.float32), usage=BufferUsage.WEIGHTS)
        for backend, name, shape in (
            (backends[0], "up", (256, 64)),
            (backends[-1], "down", (64, 256)),
        )
    )
    x = input("x", (8, 64), F32)
    hidden = relu(x @ up.T).named("hidden")
    return Graph(soft_max(x + hidden @ down.T).named("probabilities"))


def _open(registry: Registry, specs: Sequence[str]) -> list[Backend]:
    if specs:
        return [registry.open(spec) for spec in specs]
    kinds = (DeviceType.GPU, DeviceType.IGPU, DeviceType.ACCEL, DeviceType.CPU)
    found = registry.hardware(*kinds)
    if not found:
        return [registry.open_best()]
    # The last device holds the inputs, so its memory must be readable by the host.
    usable = found if found[-1].buffer_type.is_host else found[:1]
    return [device.open() for device in usable]
