"""Random transfers on streams: no byte changes but those that a program names."""

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta, transfer
from tensorplug.device.placing import LinearAllocator
from tensorplug.errors import DTypeError, ShapeError
from tensorplug.graph.tensor import leaf
from tensorplug_testing.null import NullDevice

tp.load_all()
DTYPES = [tp.F32, tp.F16, tp.I32, tp.I8, tp.Q8_0, tp.Q4_0]
STEPS = 30
"""Transfers of one attempt."""
DEVICES = [*(device.name for device in tp.devices()), "cpu@tensorplug-cpu", "meta", "late"]


def device_called(name: str, opened: ExitStack) -> tp.Device:
    """A device of this machine, a fake one that works late, or one of two of them."""
    if name == "late":
        return opened.enter_context(NullDevice("late:0", asynchronous=True))
    if name == "meta":
        pair = [opened.enter_context(NullDevice(f"part:{i}", asynchronous=True)) for i in range(2)]
        return opened.enter_context(meta.device(pair))
    return tp.device(name)


class Memory:
    """Some tensors in one buffer, and what each must hold."""

    def __init__(self, device: tp.Device, rng: Random, opened: ExitStack) -> None:
        self.buffer = opened.enter_context(device.buffer_type.alloc(1 << 14))
        linear = LinearAllocator(self.buffer)
        self.tensors = []
        for _ in range(rng.randint(2, 6)):
            dtype = rng.choice(DTYPES)
            shape = (rng.randint(1, 4), rng.randint(1, 3) * dtype.block)
            self.tensors.append(linear.place(leaf("x", shape, dtype)))
        self.held = {}
        for tensor in self.tensors:
            transfer.fill(tensor, 7)
            self.held[tensor] = np.full(tensor.nbytes, 7, np.uint8)

    def check(self) -> None:
        for tensor, wanted in self.held.items():
            np.testing.assert_array_equal(transfer.read_bytes(tensor, 0, tensor.nbytes), wanted)


def write(rng: Random, stream: tp.Backend, memory: Memory, keep: list[np.ndarray]) -> None:
    """Write some bytes or elements, of which part may lie outside."""
    tensor = rng.choice(memory.tensors)
    offset, size = rng.randint(-4, tensor.nbytes), rng.randint(0, tensor.nbytes + 4)
    data = np.frombuffer(rng.randbytes(size), np.uint8)
    keep.append(data)
    if offset < 0 or offset + size > tensor.nbytes:
        with pytest.raises(ShapeError):
            transfer.write_async(stream, tensor, data, offset)
        return
    transfer.write_async(stream, tensor, data, offset)
    memory.held[tensor][offset : offset + size] = data


def read(rng: Random, stream: tp.Backend, memory: Memory, keep: list[np.ndarray]) -> None:
    """Read some bytes, of which part may lie outside, and compare them once they are there."""
    tensor = rng.choice(memory.tensors)
    offset, size = rng.randint(-4, tensor.nbytes), rng.randint(0, tensor.nbytes + 4)
    out = np.zeros(size, np.uint8)
    if offset < 0 or offset + size > tensor.nbytes:
        with pytest.raises(ShapeError):
            transfer.read_async(stream, tensor, out, offset)
        return
    transfer.read_async(stream, tensor, out, offset)
    wanted = memory.held[tensor][offset : offset + size].copy()
    stream.synchronize()
    np.testing.assert_array_equal(out, wanted)


def copy(rng: Random, stream: tp.Backend, memory: Memory, keep: list[np.ndarray]) -> None:
    """Copy between two tensors, which may differ."""
    source, target = rng.choice(memory.tensors), rng.choice(memory.tensors)
    if not source.same_layout(target):
        with pytest.raises(ShapeError):
            transfer.copy_async(stream, stream, source, target)
        return
    transfer.copy_async(stream, stream, source, target)
    memory.held[target] = memory.held[source].copy()


def write_another_type(
    rng: Random, stream: tp.Backend, memory: Memory, keep: list[np.ndarray]
) -> None:
    """Write elements of a type that the tensor has not."""
    tensor = rng.choice(memory.tensors)
    kind = rng.choice(["float64", "int16", "bool", ">f4"])

    with pytest.raises(DTypeError):
        transfer.write_async(stream, tensor, np.zeros(1, kind))


WAYS = [write, write, read, copy, write_another_type]


@pytest.mark.parametrize("name", DEVICES)
def test_random_transfers_change_what_they_name_and_nothing_else(
    name: str, rng: Random, attempts: Callable[[int, int], int]
) -> None:
    for _ in range(attempts(5, 500)):
        with ExitStack() as opened:
            device = device_called(name, opened)
            stream = opened.enter_context(device.open())
            memory = Memory(device, rng, opened)
            keep: list[np.ndarray] = []

            for _ in range(STEPS):
                rng.choice(WAYS)(rng, stream, memory, keep)
            stream.synchronize()

            memory.check()
