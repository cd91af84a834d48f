"""Timed choices: which way to compute a node is fastest on a GPU, and right."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Self

import cupy
import numpy as np
from cupy.cuda import Event as Mark
from cupy.cuda import get_elapsed_time, runtime

from tensorplug.device import Array, Tensor
from tensorplug.dtypes import INTEGERS
from tensorplug_cuda.backend import CudaBackend
from tensorplug_cuda.errors import driver_errors
from tensorplug_cuda.facts import Gpu
from tensorplug_cuda.kernels.ways import WAYS, class_of, names_of, program_of
from tensorplug_cuda.plan import enqueue, ready
from tensorplug_cuda.programs import CACHE
from tensorplug_simt.choices import ChoiceFile, texts_id
from tensorplug_simt.facts import Facts
from tensorplug_simt.merging import Placed
from tensorplug_simt.program import Program
from tensorplug_simt.trials import indices, mask, numbers
from tensorplug_simt.tuning import Preparing, Run, Tuner

LIMIT = 1e-4
"""The largest normalised mean square error against f32: bf16 explains 3e-6, f16 1e-7 of it."""
LARGEST = 0.1
"""The largest error of a single result, by the root mean square of all: bf16 explains 0.02."""
SHARED_TEXTS = ("tensorplug_simt:dialects/cuda.h", "tensorplug_simt:kernels/copy.k")
"""Texts that are timed besides the backend's own."""


@dataclass(frozen=True)
class NodeContest:
    """The ways to compute a node that has a choice."""

    node: Tensor
    facts: Facts
    names: tuple[str, ...]

    @cached_property
    def kind(self) -> str:
        return class_of(self.node, self.names, self.facts)

    @property
    def operations(self) -> int:
        return WAYS[self.node.op].operations(self.node)

    def program(self, name: str) -> Program:
        return program_of(name, self.node, self.facts)

    def cut(self, most: int) -> Self:
        return replace(self, node=WAYS[self.node.op].cut(self.node, most))

    def operand(self, tensor: Tensor, random: np.random.Generator) -> Array:
        if tensor.dtype in INTEGERS:
            # The experts of a product with weights of several.
            return indices(tensor.dtype, self.node.sources[0].ne[2])
        ways = WAYS[self.node.op]
        if tensor is ways.mask(self.node):
            return mask(tensor.dtype, random)
        return numbers(tensor.dtype, random, ways.size(self.node, tensor))


class CudaTuner(Tuner):
    """Times on a stream of its own, by the GPU's clock."""

    limit = LIMIT
    largest = LARGEST

    def _contest(self, node: Tensor) -> NodeContest | None:
        facts = self._device.facts
        names = names_of(node, facts)
        return NodeContest(node, facts, names) if len(names) > 1 else None

    @contextmanager
    def _running(self) -> Iterator[Preparing]:
        with self._device.open() as stream:
            yield partial(_prepared, stream)


def _prepared(stream: CudaBackend, placed: Sequence[Placed]) -> Run:
    device = stream.device
    launches = [ready(stream, [part]) for part in placed]

    def run() -> float:
        with driver_errors(f"{device.name}: launch"), device.current():
            # While the GPU is busy with these, the host queues those that are timed.
            enqueue(stream, launches)
            start = stream.stream.record(Mark())
            enqueue(stream, launches)
            end = stream.stream.record(Mark())
            end.synchronize()
            milliseconds: float = get_elapsed_time(start, end)
        return milliseconds / 1000

    return run


@cache
def kernels_id() -> str:
    """A short name for the texts that are timed."""
    folder = files("tensorplug_cuda").joinpath("kernels")
    own = sorted(file.name for file in folder.iterdir() if file.name.endswith(".cu"))
    return texts_id([*(f"tensorplug_cuda:kernels/{name}" for name in own), *SHARED_TEXTS])


def choice_file(gpu: Gpu) -> ChoiceFile:
    """Where the choices for a GPU are kept. The version of cuBLASLt is part of the classes."""
    identity = {
        "device": gpu.name,
        "capability": "{}.{}".format(*gpu.capability),
        "units": str(gpu.units),
        "driver": str(runtime.driverGetVersion()),
        "cupy": cupy.__version__,
        "kernels": kernels_id(),
    }
    return ChoiceFile(CACHE, identity)
