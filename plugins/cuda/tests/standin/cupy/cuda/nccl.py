"""Sums over GPUs: a sum begins once every stream that has a part in it has come to it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cupy._machine import machine, view
from cupy._streams import Queue

NCCL_SUM = 0
NCCL_FLOAT32 = 7
INVALID_ARGUMENT, INVALID_USAGE = 4, 5

available = True


class NcclError(RuntimeError):
    """What CuPy raises for a status of NCCL."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"NCCL_ERROR: {detail}")
        self.status = status


@dataclass
class _Part:
    """What one GPU brings to a sum, and where it wants it."""

    rank: int
    send: int
    receive: int
    count: int
    queue: Queue
    before: int = 0
    """Work of its stream that comes first."""


@dataclass(eq=False)
class _Clique:
    """GPUs that sum together; `parts` are those of the sum that is being put together."""

    ordinals: list[int]
    parts: list[_Part] = field(default_factory=list)


class NcclCommunicator:
    """The place of one GPU among those that sum together."""

    def __init__(self, clique: _Clique, rank: int) -> None:
        self._clique, self._rank = clique, rank

    @staticmethod
    def initAll(devices: list[int]) -> "list[NcclCommunicator]":
        if len(set(devices)) < len(devices):
            raise NcclError(INVALID_USAGE, "a GPU stands twice among the devices")
        for ordinal in devices:
            machine.check(ordinal)
        clique = _Clique(list(devices))
        return [NcclCommunicator(clique, rank) for rank in range(len(devices))]

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        if not _groups:
            raise NcclError(INVALID_USAGE, "one thread sums over several GPUs outside of a group")
        if (datatype, op) != (NCCL_FLOAT32, NCCL_SUM):
            raise NcclError(INVALID_ARGUMENT, "the stand-in sums only f32")
        queue, ordinal = machine.queue(stream), self._clique.ordinals[self._rank]
        if queue.ordinal != ordinal:
            raise NcclError(INVALID_USAGE, f"a stream of GPU {queue.ordinal} for GPU {ordinal}")
        queue.forbid("the stand-in does not capture sums")
        for address in (sendbuf, recvbuf):
            machine.on_gpu(address, count * 4, ordinal)
        self._clique.parts.append(_Part(self._rank, sendbuf, recvbuf, count, queue))
        if self._clique not in _groups[-1]:
            _groups[-1].append(self._clique)


_groups: list[list[_Clique]] = []
"""Those that have begun, of the whole process as in NCCL."""


def groupStart() -> None:
    _groups.append([])


def groupEnd() -> None:
    for clique in _groups.pop():
        parts, clique.parts = clique.parts, []
        if sorted(part.rank for part in parts) != list(range(len(clique.ordinals))):
            raise NcclError(INVALID_USAGE, "not every GPU has one part in the sum")
        if len({part.count for part in parts}) > 1:
            raise NcclError(INVALID_ARGUMENT, "GPUs bring different numbers of elements")
        with machine.lock:
            job = _sum(parts)
            for part in parts:
                part.before = part.queue.queued
                part.queue.put(job)


def _sum(parts: list[_Part]) -> Callable[[], None]:
    """What every stream does where it comes to the sum: the first one does it for all."""
    done = False

    def job() -> None:
        nonlocal done
        if done:
            return
        done = True
        for part in parts:
            part.queue.run(part.before)
        terms = [view(part.send, part.count * 4).view(np.float32) for part in parts]
        total = np.sum(terms, axis=0, dtype=np.float32)
        for part in parts:
            view(part.receive, part.count * 4).view(np.float32)[:] = total

    return job
