"""`Rig`: simple work that nearly every device supports, and memory for it."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Array,
    Backend,
    Buffer,
    BufferType,
    Device,
    Plan,
    Resource,
    Tensor,
    place,
    transfer,
)

T = TypeVar("T", bound=Resource)

SIZES = (1, 3, 64, 100, 4097, 1 << 20)
"""Bytes of buffers: less than an alignment, odd, round."""
UNTOUCHED = 0xA5
"""The byte with which memory is filled before work: a finite float that is never a result."""


class SimpleOp(NamedTuple):
    """An op of one tensor, and the same function for arrays."""

    name: str
    build: Callable[[Tensor], Tensor]
    apply: Callable[[Array], Array]


SIMPLE_OPS = (
    SimpleOp("add", lambda x: tp.add(x, x), lambda a: a + a),
    SimpleOp("dup", tp.dup, lambda a: a),
)
"""The ops that tests can use as work, in order of preference."""


def simple_op_of(device: Device) -> SimpleOp | None:
    """The first of SIMPLE_OPS that `device` does not refuse."""
    x = tp.input("x", (4, 4), tp.F32)
    return next((op for op in SIMPLE_OPS if not device.refuses(op.build(x))), None)


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph with memory and a plan: write inputs, run, read results."""

    plan: Plan
    bound: tp.Part

    def write(self, inputs: Mapping[Tensor, Any]) -> None:
        """Write inputs, before returning."""
        for tensor, data in inputs.items():
            transfer.write(tensor, data, self.bound.bindings)

    def read(self, tensor: Tensor) -> Array:
        """Return a copy of the value of `tensor`. The caller must have waited for its work."""
        return transfer.read(tensor, self.bound.bindings)

    def compute(self, inputs: Mapping[Tensor, Any] | None = None) -> list[Array]:
        """Write inputs, run, wait, and return all outputs."""
        self.write(inputs or {})
        self.plan.run()
        self.plan.backend.synchronize()
        return [self.read(t) for t in self.bound.outputs]


class Rig:
    """The resources that one test makes on a device; `close()` releases them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._made: list[Resource] = []

    def open(self) -> Backend:
        """A new stream."""
        return self.keep(self.device.open())

    def alloc(self, size: int, memory: BufferType | None = None) -> Buffer:
        """A new buffer full of UNTOUCHED."""
        buffer = self.keep((memory or self.device.buffer_type).alloc(size))
        buffer.fill(UNTOUCHED)
        return buffer

    def place(self, data: Any, memory: BufferType | None = None) -> Tensor:
        """A persistent tensor with `data`."""
        tensor = place("x", np.asarray(data), memory or self.device.buffer_type)
        assert tensor.place is not None
        self.keep(tensor.place.buffer)
        return tensor

    def keep(self, resource: T) -> T:
        """Close `resource` when the test ends."""
        self._made.append(resource)
        return resource

    # --- computing -------------------------------------------------------------------------

    @property
    def op(self) -> SimpleOp:
        """An op that the device supports; skips the test if there is none."""
        op = simple_op_of(self.device)
        if op is None:
            names = " nor ".join(op.name for op in SIMPLE_OPS)
            pytest.skip(f"{self.device.name} supports neither {names}")
        return op

    def chain(self, x: Tensor, length: int = 1) -> Tensor:
        """A chain of `length` ops from `x` on."""
        for _ in range(length):
            x = self.op.build(x)
        return x

    def after(self, array: Array, length: int = 1) -> Array:
        """The result of a chain of `length` ops for `array`."""
        for _ in range(length):
            array = self.op.apply(array)
        return array

    def bind(
        self,
        outputs: Tensor | Sequence[Tensor] | tp.Graph | tp.Part,
        places: Mapping[Tensor, tp.Place] | None = None,
    ) -> tp.Part:
        """A part with a new buffer for each tensor without memory of its own or in `places`."""
        part = _part_of(outputs)
        roots = dict.fromkeys(t.root for t in (*part.leafs, *part.nodes))
        given = dict(places or {})
        size_of = self.device.buffer_type.alloc_size
        given |= {
            t: tp.Place(self.alloc(size_of(t)), 0)
            for t in roots
            if t.place is None and t not in given
        }
        return part.bind(tp.Bindings(given))

    def plan(
        self,
        outputs: Tensor | Sequence[Tensor] | tp.Graph | tp.Part,
        backend: Backend | None = None,
        places: Mapping[Tensor, tp.Place] | None = None,
    ) -> Planned:
        """A plan with memory for all its tensors, on `backend` or on a new stream.

        Skips the test if the device refuses a node.
        """
        bound = self.bind(outputs, places)
        for node in (n for n in bound.nodes if not n.is_view):
            refusal = self.device.refuses(node)
            if refusal is not None:
                pytest.skip(refusal.reason)
        return Planned(self.keep((backend or self.open()).plan(bound)), bound)

    def close(self) -> None:
        """Close all resources, newest first."""
        for resource in reversed(self._made):
            resource.close(force=True)
        self._made.clear()


class Suite:
    """Fixtures of all suites. The class that inherits them provides the fixture `device`."""

    @pytest.fixture
    def work(self, device: Device) -> Iterator[Rig]:
        """The resources of the test, which are closed after it."""
        made = Rig(device)
        yield made
        made.close()

    @pytest.fixture
    def quick_collection(self) -> None:
        """Freeze existing objects, so that the garbage collector sees only those of the test.

        They stay frozen afterwards, because later collections would examine all of them again.
        """
        gc.freeze()

    @pytest.fixture
    def memory(self, device: Device) -> BufferType:
        """The buffer type that the device computes in."""
        return device.buffer_type


def _part_of(outputs: Tensor | Sequence[Tensor] | tp.Graph | tp.Part) -> tp.Part:
    if isinstance(outputs, tp.Part):
        return outputs
    return tp.Part.of(outputs if isinstance(outputs, tp.Graph) else tp.Graph(outputs))


def numbers(*shape: int, seed: int = 0) -> Array:
    """Random small integers as f32, whose sums and doubles are exact."""
    return np.random.default_rng(seed).integers(-99, 100, shape).astype(np.float32)
