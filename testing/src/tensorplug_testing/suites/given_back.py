"""`GivenBackTests`: a closed object holds no memory, even while references to it exist."""

import gc
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Backend, Device, DeviceType, Tensor, leaf, place_in, transfer
from tensorplug_testing.suites.work import Rig, Suite, numbers

SIZE = 40 << 20
"""The size of each buffer in bytes, if the device has enough memory."""
TIMES = 4
LARGE = 32 << 20
"""The smallest allocation in bytes that the C library returns to the system when it is freed;
smaller ones stay in its heap."""
_STATM = Path("/proc/self/statm")


class GivenBackTests(Suite):
    """Memory must not grow while objects are made and closed and references to them are kept."""

    def test_closed_buffers_hold_no_memory(self, work: Rig, device: Device) -> None:
        size = _size(device)

        def once() -> Any:
            buffer = device.buffer_type.alloc(size)
            buffer.fill(1)
            buffer.close()
            return buffer

        _check(device, once, size)

    def test_closed_plans_hold_no_memory(self, work: Rig, device: Device) -> None:
        size, backend = _size(device), work.open()
        table = _table(work, device, size)

        def once() -> Any:
            return _run(work, device, backend, table, size)

        assert work.op.name
        _check(device, once, size)

    def test_closed_streams_hold_no_memory(self, work: Rig, device: Device) -> None:
        size = _size(device)
        table = _table(work, device, size)

        def once() -> Any:
            backend = device.open()
            plan = _run(work, device, backend, table, size)
            backend.close()
            return [backend, plan]

        assert work.op.name
        _check(device, once, size)


def _size(device: Device) -> int:
    """A size of buffers in bytes of which the device has memory for many."""
    memory = device.memory()
    room = memory.free // (4 * TIMES) if memory.total else SIZE
    return min(SIZE, device.buffer_type.max_size, room)


def _table(work: Rig, device: Device, size: int) -> Tensor | None:
    """f16 weights of half of `size` bytes, which a plan might expand to f32; None if the device
    does not support them."""
    table = leaf("table", (size // 2 // 2048, 1024), tp.F16)
    if not table.size or device.refuses(tp.get_rows(table, tp.input("ids", (1,), tp.I32))):
        return None
    buffer = work.alloc(device.buffer_type.alloc_size(table))
    buffer.usage = tp.WEIGHTS
    placed = place_in(table, buffer, 0)
    transfer.fill(placed, 0)
    return placed


def _run(work: Rig, device: Device, backend: Backend, table: Tensor | None, size: int) -> Any:
    """Run a plan in new buffers of `size` bytes each, close everything, and return the plan."""
    x, ids = tp.input("x", (100,), tp.F32), tp.input("ids", (1,), tp.I32)
    outputs = [work.chain(x), *([] if table is None else [tp.get_rows(table, ids)])]
    graph = tp.Graph(outputs)
    kind = device.buffer_type
    homeless = [t for t in (*graph.leafs, *graph.nodes) if t.place is None]
    needed = {t: max(size if t in outputs else 0, kind.alloc_size(t)) for t in homeless}
    places = {t: tp.Place(kind.alloc(bytes_), 0) for t, bytes_ in needed.items()}
    bound = tp.Part.of(graph, tp.Bindings(places))
    for place in places.values():
        place.buffer.fill(0)  # untouched pages are not allocated yet
    transfer.write(x, numbers(100), bound.bindings)
    plan = backend.plan(bound)
    plan.run()
    backend.synchronize()
    np.testing.assert_array_equal(
        transfer.read(outputs[0], bound.bindings), work.after(numbers(100))
    )
    plan.close()
    for place in places.values():
        place.buffer.close()
    return plan


def _check(device: Device, once: Callable[[], Any], size: int) -> None:
    """Call `once` repeatedly and keep its results. Each call must hold less than half of `size`
    bytes."""
    kept = [once() for _ in range(2)]
    with Meter(device, size) as meter:
        kept += [once() for _ in range(TIMES)]
        grown = meter.growth()
    held = [f"{bytes_ >> 10} KiB {what}" for what, bytes_ in grown.items()]
    assert all(g <= TIMES * size // 2 for g in grown.values()), (
        f"{TIMES} closed objects with {size >> 10} KiB each still hold memory: {', '.join(held)}; "
        "release it in _close()"
    )
    assert len(kept) == TIMES + 2


class Meter:
    """Measures the memory used by Python and NumPy, by the process, and by the device."""

    def __init__(self, device: Device, size: int) -> None:
        """`size` is the size of the buffers in bytes."""
        self._device = device
        self._large = size > LARGE
        self._ours = False

    def __enter__(self) -> "Meter":
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start()
        self._before = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ours:
            tracemalloc.stop()

    def growth(self) -> dict[str, int]:
        """The growth of memory in use, by the name of the counter."""
        now = self._now()
        return {what: now[what] - before for what, before in self._before.items()}

    def _now(self) -> dict[str, int]:
        gc.collect()
        found = {"of Python": tracemalloc.get_traced_memory()[0]}
        if self._large and _STATM.exists():
            pages = int(_STATM.read_text(encoding="ascii").split()[1])
            found["of the process"] = pages * os.sysconf("SC_PAGE_SIZE")
        # Free host memory is not measured, because other processes change it.
        if self._device.type is DeviceType.GPU:
            found["of the device"] = -self._device.memory().free
        return found
