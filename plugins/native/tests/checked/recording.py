"""Programs of plans in a file, with memory and the results wanted, for `checks/replay.cpp`."""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

import tensorplug as tp
from tensorplug_cpu.plan import looking
from tensorplug_native.backend import NativeBackend
from tensorplug_native.headers import interface
from tensorplug_native.program import NO_TYPE, address
from tensorplug_testing.cases.expected import expected
from tensorplug_testing.cases.laid import Laid

ALIGNMENT = 64
GAP = 64
"""Bytes between pieces of memory."""
COMPARED = {tp.F32, tp.F16, tp.BF16, tp.I32}
CHECK = np.dtype([("place", "i8"), ("elements", "i8"), ("type", "i8"), ("limit", "f8")])


@dataclass
class Recording:
    """Records with the addresses of this process, and results: where, of which type, wanted."""

    records: np.ndarray
    keep: object
    """What owns the memory."""
    results: list[tuple[int, tp.DType, float, np.ndarray]] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def expect(self, start: int, dtype: tp.DType, wanted: np.ndarray, limit: float) -> None:
        """`wanted` are the values of `dtype` without gaps from `start` on, after a run."""
        with np.errstate(over="ignore"):
            values = wanted.astype(np.float32) if dtype is tp.F32 else wanted
        self.results.append((start, dtype, limit, values.astype(np.float64).ravel()))
        self.ranges.append((start, start + wanted.size * dtype.size))


def recorded(bound: tp.Part, backend: NativeBackend) -> Recording | None:
    """The program of a graph, before it has run; None where NumPy has a part in it."""
    with backend.plan(bound) as plan:
        programs = [stretch.program for stretch in plan._stretches]
    if not programs or not all(programs):
        return None
    records = np.concatenate([program._records for program in programs])
    return Recording(records, (bound, programs))


def recorded_case(laid: Laid, backend: NativeBackend, limit: float) -> Recording | None:
    """The program of a case and what the reference says; None where NumPy has a part in it."""
    found = recorded(laid.bound, backend)
    plain = all(root.dtype in COMPARED for root in laid.results)
    if found is None or not plain or laid.case.compare not in ("near", "exact"):
        return None
    look = looking(laid.bindings)
    for root, wanted in zip(laid.results, expected(laid.built, laid.results), strict=True):
        error = limit if root.dtype is tp.F32 else max(limit, laid.case.limit)
        found.expect(address(look(root).array), root.dtype, wanted, error)
    return found


def written(recordings: Sequence[Recording]) -> bytes:
    """One program of all records, with what their operands hold now."""
    records = np.concatenate([r.records for r in recordings]).copy()
    pieces = _pieces([*_extents(records), *(pair for r in recordings for pair in r.ranges)])
    places, memory = _gather(pieces)
    for operand in _operands(records):
        operand["data"] = _place(places, int(operand["data"]))
    checks = np.array(
        [
            (_place(places, start), values.size, dtype.id, limit)
            for r in recordings
            for start, dtype, limit, values in r.results
        ],
        CHECK,
    )
    head = np.array([interface(), len(records), len(memory), len(checks)], np.int64)
    wanted = b"".join(values.tobytes() for r in recordings for _, _, _, values in r.results)
    return head.tobytes() + records.tobytes() + memory + checks.tobytes() + wanted


def _operands(records: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(len(records)):
        operands = (records[at]["out"], records[at]["also"], *records[at]["src"])
        yield from (operand for operand in operands if operand["type"] != NO_TYPE)


def _extents(records: np.ndarray) -> Iterable[tuple[int, int]]:
    """The first byte of each operand and the one after its last."""
    for operand in _operands(records):
        ne, nb = operand["ne"].tolist(), operand["nb"].tolist()
        dtype = tp.dtype(int(operand["type"]))
        row = dtype.row_size(ne[0]) if dtype.is_block else (ne[0] - 1) * nb[0] + dtype.size
        start = int(operand["data"])
        yield start, start + row + sum((n - 1) * b for n, b in zip(ne[1:], nb[1:], strict=True))


def _pieces(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that do not meet, in order."""
    pieces: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if pieces and start <= pieces[-1][1]:
            pieces[-1] = pieces[-1][0], max(end, pieces[-1][1])
        else:
            pieces.append((start, end))
    return pieces


def _gather(pieces: list[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], bytes]:
    """Start, end and new place of each piece, which is as aligned as before; and all bytes."""
    places, memory = [], bytearray()
    for start, end in pieces:
        place = -(-(len(memory) + GAP) // ALIGNMENT) * ALIGNMENT + start % ALIGNMENT
        memory.extend(bytes(place - len(memory)))
        memory += ctypes.string_at(start, end - start)
        places.append((start, end, place))
    return places, bytes(memory + bytes(GAP))


def _place(places: list[tuple[int, int, int]], at: int) -> int:
    (found,) = (place + at - start for start, end, place in places if start <= at < end)
    return found
