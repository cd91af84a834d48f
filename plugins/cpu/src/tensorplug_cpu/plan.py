"""`CPUPlan`: a part as a flat list of calls without arguments."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device import (
    Aborted,
    Array,
    Bindings,
    Part,
    Plan,
    Tensor,
    Unsupported,
    array_view,
)
from tensorplug_cpu.kernels import KERNELS
from tensorplug_cpu.operand import Operand, OwnLayoutBuffer
from tensorplug_cpu.support import refusal
from tensorplug_cpu.task import Scratch, Task, Tools
from tensorplug_cpu.threads import Step, blas_threads

if TYPE_CHECKING:
    from tensorplug_cpu.backend import CPUBackend


class CPUPlan(Plan):
    """Arrays, scratch memory and calls are prepared once; a run only makes the calls."""

    backend: "CPUBackend"

    def __init__(self, backend: "CPUBackend", bound: Part) -> None:
        super().__init__(backend, bound)
        self._scratch = Scratch()
        self._rebind()

    def _rebind(self) -> None:
        look = self._look()
        tools = Tools(self.backend.team, self._scratch)
        with np.errstate(all="ignore"):
            self._nodes = [
                (node, prepare(node, look, tools, plain=self.backend.use_reference))
                for node in self.bound.nodes
                if not node.is_view and node.size
            ]
        self._steps = [step for _, steps in self._nodes for step in steps]

    def _look(self) -> "Look":
        """Where the tensors of the part lie."""
        return looking(self.bound.bindings)

    def _run(self) -> None:
        abort = self.backend.abort_callback
        with np.errstate(all="ignore"), blas_threads(self.backend.threads):
            if abort is None:
                for step in self._steps:
                    step()
            else:
                self._run_until(abort)

    def _run_until(self, abort: Callable[[], bool]) -> None:
        for done, (node, steps) in enumerate(self._nodes):
            if abort():
                raise Aborted(
                    f"{self.backend.name}: stopped by its abort callback before {node}, "
                    f"after {done} of {len(self._nodes)} nodes"
                )
            for step in steps:
                step()

    def _close(self) -> None:
        self._nodes, self._steps = [], []


Look = Callable[[Tensor], Operand]
"""Where a tensor lies, as arrays."""


def looking(bindings: Bindings) -> Look:
    """`resolve` for these bindings, that remembers: most tensors are a result and a source."""
    return cache(partial(resolve, bindings=bindings))


def prepare(node: Tensor, look: Look, tools: Tools, *, plain: bool = False) -> Sequence[Step]:
    """The steps of one node, by its kernel or its plain function. Raises Unsupported."""
    reason = refusal(node, {})
    if reason:
        raise Unsupported(f"cpu: {node}: {reason}")
    out = look(node)
    if not all(look(t).array.flags.writeable for t in (node, *node.also_writes)):
        raise Unsupported(f"cpu: {node}: writes into read-only memory; copy its root first")
    if plain or node.op not in KERNELS:
        from tensorplug_cpu.plain import reference_steps  # noqa: PLC0415 - loads gguf, rarely used

        return reference_steps(node, look)
    tools.scratch.begin()
    operands = tuple(None if t is None else look(t) for t in node.operands)
    steps = KERNELS[node.op](Task(node, out, operands, tools))
    for root in node.written_roots:
        tools.writes[root] = tools.writes.get(root, 0) + 1
    return list(steps)


def resolve(tensor: Tensor, bindings: Bindings) -> Operand:
    """The memory of `tensor` as an array of four dimensions."""
    place = bindings.where(tensor)
    buffer = place.buffer
    if isinstance(buffer, OwnLayoutBuffer):
        return buffer.operand(tensor, place.offset - tensor.view_offset)
    array: Array = array_view(tensor, buffer.host(), place.offset)
    return Operand(array.reshape((1,) * (4 - array.ndim) + array.shape), tensor.dtype)
