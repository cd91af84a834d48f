"""Timed choices: which variant of a matrix product is fastest on a device, kept on disk.

A choice is made once for each class of products (`variants.class_of`), by running every variant
on memory of the tuner's own. A file belongs to one device, driver and text of the kernels; one that
cannot be read, or is about something else, counts as empty.
"""

import hashlib
import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from tensorplug.dtypes import I32
from tensorplug.errors import DeviceError
from tensorplug.tensor import Tensor
from tensorplug_opencl.kernels import operands, tiled, wide
from tensorplug_opencl.kernels.matmul import operands_of
from tensorplug_opencl.kernels.operands import Operands
from tensorplug_opencl.kernels.variants import class_of, program_of, variants
from tensorplug_opencl.plan import Ready, with_arguments
from tensorplug_opencl.programs import cache_folder
from tensorplug_simt.cache import write_whole
from tensorplug_simt.dialects.dialect import read_resource
from tensorplug_simt.program import Launch, Program

if TYPE_CHECKING:
    from tensorplug_opencl.device import OpenCLDevice

BUDGET = 60.0
"""Seconds that one device may spend on timing, compilers included."""
RUNS, ENOUGH = 5, 0.1
"""A variant is run so many times at most, and not again after so many seconds."""
MARGIN = 0.95
"""The variant that facts choose stays unless another takes less than this part of its time."""
LEAST, MOST = 2**16, 2**30
"""Multiplications and additions of a timed product: launching hides the time of smaller ones.
Larger ones than MOST for each unit of the device are cut."""
MOST_BYTES = 2**30
"""Memory for a timed product."""
FILLING = 0x3C
"""Byte of the operands: halves, floats and scales made of it are near 1, so no sum overflows."""


class Tuner:
    """Makes the choices of one device. Thread-safe."""

    def __init__(self, device: "OpenCLDevice") -> None:
        self._device = device
        self._left = BUDGET
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def tune(self, node: Tensor) -> None:
        """Make the choice for `node` where there is none yet and time is left."""
        these = operands_of(node)
        if these is None:
            return
        with self._lock:
            facts = self._device.facts
            kind = class_of(these, facts)
            valid = variants(these, facts)
            known = kind in self._seen or facts.choices.get(kind) in valid
            small = operations(these) < LEAST
            if known or small or len(valid) < 2 or self._left <= 0:
                return
            self._seen.add(kind)
            start = perf_counter()
            chosen = self._fastest(cut(these, MOST * facts.units), valid)
            self._left -= perf_counter() - start
            if chosen:
                choices = MappingProxyType({**facts.choices, kind: chosen})
                self._device.facts = replace(facts, choices=choices)
                remember(self._device.driver, {kind: chosen})

    def scratch(self, node: Tensor) -> int:
        """Bytes of scratch memory that every variant of `node` can do with."""
        these, facts = operands_of(node), self._device.facts
        valid = variants(these, facts) if these is not None else []
        return max((program_of(name, these, facts).scratch for name in valid if these), default=0)

    def _fastest(self, these: Operands, valid: list[str]) -> str:
        """The name of the fastest variant; empty where time or memory does not suffice."""
        facts = self._device.facts
        programs = {name: program_of(name, these, facts) for name in valid}
        deadline = perf_counter() + self._left
        times: dict[str, float] = {}
        with suppress(cl.Error), _memory(self._device, these, programs) as memory:
            for name, program in programs.items():
                if perf_counter() > deadline:
                    return ""
                times[name] = self._time(program, memory, min(times.values(), default=math.inf))
        return self._quickest(times, valid[0]) if times else ""

    @staticmethod
    def _quickest(times: Mapping[str, float], usual: str) -> str:
        quickest = min(times, key=lambda name: times[name])
        return quickest if times[quickest] < MARGIN * times[usual] else usual

    def _time(self, program: Program, memory: Mapping[Any, Any], best: float) -> float:
        """Seconds of one run, infinite where the driver cannot do it. Hopeless ones run once."""
        queue = self._device.queue()
        try:
            ready = [_bind(self._device, launch, memory) for launch in program.launches]
            taken = [_run(queue, ready) for _ in range(2)][1:]
            while len(taken) < RUNS and sum(taken) < ENOUGH and taken[0] < 3 * best:
                taken.append(_run(queue, ready))
        except (DeviceError, cl.Error):
            return math.inf
        return min(taken)


def operations(these: Operands) -> int:
    """Multiplications and additions of a product."""
    return 2 * these.w.ne[0] * these.w.ne[1] * these.rows * these.matrices


def cut(these: Operands, most: int) -> Operands:
    """The first rows of `w` alone where the product is larger than `most` operations."""
    w, y = these.w, these.y
    row = operations(these) // w.ne[1]
    n = min(w.ne[1], max(most // row // 256 * 256, 256))
    return replace(
        these,
        w=replace(w, ne=(w.ne[0], n, w.ne[2], w.ne[3])),
        y=replace(y, ne=(n, y.ne[1], y.ne[2], y.ne[3])),
    )


@contextmanager
def _memory(
    device: "OpenCLDevice", these: Operands, programs: Mapping[str, Program]
) -> Iterator[dict[Tensor | None, Any]]:
    """Filled memory for every tensor of the programs, and under None for scratch memory.

    Nothing where it is too much.
    """
    sizes: dict[Tensor | None, int] = {None: max(p.scratch for p in programs.values())}
    for launch in (launch for p in programs.values() for launch in p.launches):
        for region in launch.regions.values():
            end = region.offset + region.nbytes
            sizes[region.tensor] = max(sizes.get(region.tensor, 1), end)
    if sum(sizes.values()) > min(MOST_BYTES, device.memory().free // 2):
        raise cl.MemoryError("too much memory to time a product")
    queue, memory = device.queue(), {}
    try:
        for tensor, size in sizes.items():
            memory[tensor] = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, size + 128)
            if tensor is not None and tensor.dtype is I32:
                ids = np.arange(size // 4, dtype=np.int32) % these.w.ne[2]
                cl.enqueue_copy(queue, memory[tensor], ids)
            else:
                cl.enqueue_fill_buffer(queue, memory[tensor], np.uint8(FILLING), 0, size)
        yield memory
    finally:
        queue.finish()
        for buffer in memory.values():
            buffer.release()


def _bind(device: "OpenCLDevice", launch: Launch, memory: Mapping[Any, Any]) -> Ready:
    regions = launch.regions
    block = launch.parameters({name: region.offset for name, region in regions.items()})
    places = [memory[region.tensor] for region in regions.values()]
    kernel = device.programs.kernel(launch)
    return with_arguments(kernel, places, block, launch.groups, launch.local)


def _run(queue: Any, ready: list[Ready]) -> float:
    """Seconds from the first launch to the end of the last."""
    start = perf_counter()
    for kernel, size, local in ready:
        cl.enqueue_nd_range_kernel(queue, kernel, size, local)
    queue.finish()
    return perf_counter() - start


# --- on disk ---------------------------------------------------------------------------------


@cache
def kernels_id() -> str:
    """A short name for the texts that are timed: another one after every change."""
    names = (operands.TEXT, tiled.TEXT, wide.TEXT, wide.STREAM_TEXT)
    texts = "".join(read_resource(name) for name in names)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def identity(driver: Any) -> dict[str, str]:
    """What choices are true for."""
    return {
        "device": driver.name.strip(),
        "platform": driver.platform.name.strip(),
        "driver": driver.driver_version,
        "kernels": kernels_id(),
    }


def remembered(driver: Any) -> Mapping[str, str]:
    """The choices of earlier processes; none where there is no sound file."""
    with suppress(OSError, ValueError):
        found = json.loads(_file(driver).read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("for") == identity(driver):
            choices = found.get("choices")
            if isinstance(choices, dict) and all(isinstance(v, str) for v in choices.values()):
                return MappingProxyType(choices)
    return MappingProxyType({})


def remember(driver: Any, choices: Mapping[str, str]) -> None:
    """Add choices to the file. It changes as a whole, so that readers never see half of it.

    Of two processes that write at once, one's choice may be lost and timed again later. Where
    nothing can be written, choices hold for this process.
    """
    with suppress(OSError):
        file = _file(driver)
        text = json.dumps(
            {"for": identity(driver), "choices": {**remembered(driver), **choices}},
            indent=1,
            sort_keys=True,
        )
        write_whole(file, text.encode())


def _file(driver: Any) -> Path:
    name = hashlib.sha256(json.dumps(identity(driver)).encode()).hexdigest()[:16]
    return cache_folder() / f"choices-{name}.json"
