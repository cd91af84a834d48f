"""GPUs sum by themselves where they are several, and the generic way where they are one."""

import numpy as np
import pytest
from cupy.cuda import nccl

import tensorplug as tp
from tensorplug.device import DeviceError


def numbers(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def placed(pair):
    """Streams of both devices, and the same tensor on each, with values of its own."""
    streams = [device.open() for device in pair]
    tensors = [s.place("t", numbers(3, 5, seed=i)) for i, s in enumerate(streams)]
    yield streams, [t.place for t in tensors], tensors
    for stream in streams:
        stream.close()


def test_copies_on_several_gpus_are_summed_in_order_with_their_streams(placed):
    streams, places, tensors = placed
    summed = streams[0].device.all_reduce(streams, places, tensors[0])
    for stream in streams:
        stream.synchronize()

    alone = streams[0].device.ordinal == streams[1].device.ordinal
    first, second = numbers(3, 5, seed=0), numbers(3, 5, seed=1)
    wanted = [first, second] if alone else [first + second] * 2
    assert summed is not alone
    for tensor, values in zip(tensors, wanted, strict=True):
        np.testing.assert_array_equal(tp.transfer.read(tensor), values)


def test_without_nccl_nothing_is_summed(placed, monkeypatch):
    streams, places, tensors = placed
    monkeypatch.setattr(nccl, "available", False)

    assert streams[0].device.all_reduce(streams, places, tensors[0]) is False


def test_what_nccl_refuses_is_a_device_error_that_names_the_gpus(machine, devices, monkeypatch):
    machine.reset(gpus=2)

    def refuse(*_):
        raise nccl.NcclError(nccl.INVALID_USAGE, "unhandled system error")

    monkeypatch.setattr(nccl.NcclCommunicator, "allReduce", refuse)
    first, second = devices()
    with first, second, first.open() as one, second.open() as other:
        tensors = [one.place("t", numbers(4)), other.place("t", numbers(4))]

        with pytest.raises(DeviceError, match=r"cuda:0, cuda:1: sum of .* by NCCL: NCCL_ERROR"):
            first.all_reduce([one, other], [t.place for t in tensors], tensors[0])
