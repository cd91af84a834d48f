"""Timed choices: which variant of a matrix product is fastest on a device.

OpenCL's errors do not tell that a device is gone. So a variant is tried once if the process ends
with it; one that fails otherwise is refused, and tried again where no choice came about.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyopencl as cl

from tensorplug.device import Array, Tensor, map_driver_errors
from tensorplug.dtypes import INTEGERS
from tensorplug_opencl.kernels import operands, tiled, wide
from tensorplug_opencl.kernels.matmul import operands_of
from tensorplug_opencl.kernels.operands import Operands
from tensorplug_opencl.kernels.variants import class_of, program_of, variants
from tensorplug_opencl.memory import ERRORS
from tensorplug_opencl.plan import bind, queue_all
from tensorplug_opencl.programs import CACHE
from tensorplug_simt.choices import ChoiceFile, texts_id
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import rounding
from tensorplug_simt.merging import Placed
from tensorplug_simt.program import Program
from tensorplug_simt.trials import first_rows, indices, numbers, some
from tensorplug_simt.tuning import Preparing, Run, Tuner

if TYPE_CHECKING:
    from tensorplug_opencl.device import OpenCLDevice


@dataclass(frozen=True)
class ProductContest:
    """The variants of a product."""

    node: Tensor
    these: Operands
    facts: Facts

    @cached_property
    def kind(self) -> str:
        return class_of(self.these, self.facts)

    @cached_property
    def names(self) -> Sequence[str]:
        return variants(self.these, self.facts)

    @property
    def operations(self) -> int:
        these = self.these
        return 2 * these.w.ne[0] * these.w.ne[1] * these.rows * these.matrices

    def program(self, name: str) -> Program:
        return program_of(name, self.these, self.facts)

    def cut(self, most: int) -> Self:
        """The first rows of `w` alone where there are more than `most` operations."""
        w, y = self.these.w, self.these.y
        n = some(w.ne[1], most // (self.operations // w.ne[1]))
        y = replace(y, ne=(n, *y.ne[1:]))
        return replace(self, these=replace(self.these, w=first_rows(w, n), y=y))

    def operand(self, tensor: Tensor, random: np.random.Generator) -> Array:
        if tensor.dtype in INTEGERS:
            return indices(tensor.dtype, self.these.w.ne[2])
        return numbers(tensor.dtype, random)


class OpenCLTuner(Tuner):
    """Times the variants of products on a queue of its own."""

    def _contest(self, node: Tensor) -> ProductContest | None:
        these = operands_of(node)
        if these is None:
            return None
        contest = ProductContest(node, these, rounding(self._device.facts, node))
        return contest if len(contest.names) > 1 else None

    @contextmanager
    def _running(self) -> Iterator[Preparing]:
        device: OpenCLDevice = self._device
        queue = device.queue()

        def prepare(placed: Sequence[Placed]) -> Run:
            with map_driver_errors(ERRORS, f"{device.name}: kernel"):
                ready = [bind(device, [part]) for part in placed]

            def run() -> float:
                with map_driver_errors(ERRORS, f"{device.name}: launch"):
                    start = perf_counter()
                    queue_all(queue, ready)
                    queue.finish()
                    return perf_counter() - start

            return run

        try:
            yield prepare
        finally:
            # Runs wait for their end: what is left is that of one which failed and was refused.
            with suppress(cl.Error):
                queue.finish()


@cache
def kernels_id() -> str:
    """A short name for the texts that are timed."""
    return texts_id((operands.TEXT, tiled.TEXT, wide.TEXT, wide.STREAM_TEXT))


def choice_file(driver: Any) -> ChoiceFile:
    """Where the choices for a device are kept."""
    identity = {
        "device": driver.name.strip(),
        "platform": driver.platform.name.strip(),
        "driver": driver.driver_version,
        "kernels": kernels_id(),
    }
    return ChoiceFile(CACHE, identity)
