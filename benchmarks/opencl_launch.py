"""What a launch costs the host, and in all, on an OpenCL device: the best microseconds of several.

`plan` re-runs a plan of operations on a few numbers, each of which needs the one before.
`driver` puts one kernel with one argument into a queue by PyOpenCL as often, and `command buffer`
the same launches by one call, where the driver has `cl_khr_command_buffer`.
"""

import argparse
import ctypes
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyopencl as cl
from chains import planned

import tensorplug as tp

ONE = "kernel void one(global float *x) { x[get_global_id(0)] += 1.0f; }"
SIZE = (16, 1, 1)
LOCAL = (1, 1, 1)
Pointer = ctypes.c_void_p


def best(work: Callable[[], object], wait: Callable[[], object], repeats: int) -> tuple[float, ...]:
    """Seconds until `work` returns, and until `wait` after it does."""
    times = []
    for _ in range(repeats + 1):
        wait()
        start = time.perf_counter()
        work()
        queued = time.perf_counter()
        wait()
        times.append((queued - start, time.perf_counter() - start))
    return tuple(min(column) for column in zip(*times[1:], strict=True))


def by_plan(backend: Any, count: int, repeats: int) -> tuple[float, ...]:
    """A plan of `count` operations."""
    with planned(backend, count) as plan:
        return best(plan.run, backend.synchronize, repeats)


def by_driver(queue: Any, kernel: Any, count: int, repeats: int) -> tuple[float, ...]:
    """`count` launches by PyOpenCL."""

    def put() -> None:
        for _ in range(count):
            cl.enqueue_nd_range_kernel(queue, kernel, SIZE, LOCAL)

    return best(put, queue.finish, repeats)


def by_command_buffer(queue: Any, kernel: Any, count: int, repeats: int) -> tuple[float, ...]:
    """`count` launches recorded once, then put into the queue by one call."""
    find = _library().clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = Pointer, [Pointer, ctypes.c_char_p]

    def function(name: str, result: Any, *arguments: Any) -> Any:
        address = find(queue.device.platform.int_ptr, f"cl{name}KHR".encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    result, word, three, none = ctypes.c_int, ctypes.c_uint, [Pointer] * 3, None
    sync = (word, Pointer, Pointer)
    create = function("CreateCommandBuffer", Pointer, word, *three)
    record = function("CommandNDRangeKernel", result, *three, Pointer, word, *three, *sync, Pointer)
    finish = function("FinalizeCommandBuffer", result, Pointer)
    enqueue = function("EnqueueCommandBuffer", result, word, Pointer, Pointer, *sync)
    release = function("ReleaseCommandBuffer", result, Pointer)

    queues = (Pointer * 1)(queue.int_ptr)
    sizes = [(ctypes.c_size_t * 3)(*size) for size in (SIZE, LOCAL)]
    buffer = create(1, queues, none, none)
    for _ in range(count):
        record(buffer, none, none, kernel.int_ptr, 3, none, *sizes, 0, none, none, none)
    finish(buffer)
    try:
        return best(lambda: enqueue(0, none, buffer, 0, none, none), queue.finish, repeats)
    finally:
        queue.finish()
        release(buffer)


def _quietly(program: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # drivers log every build
        return program.build()


def _library() -> ctypes.CDLL:
    """The OpenCL library that PyOpenCL uses. Linux only."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "libOpenCL" in line))


def report(arguments: argparse.Namespace) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Each way and its seconds."""
    count, repeats = arguments.count, arguments.repeats
    with tp.open(arguments.device) as backend:
        yield "plan", by_plan(backend, count, repeats)
        queue = cl.CommandQueue(backend.device.context)
        kernel = _quietly(cl.Program(queue.context, ONE)).one
        memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
        kernel.set_arg(0, memory)
        yield "driver", by_driver(queue, kernel, count, repeats)
        if "cl_khr_command_buffer" in queue.device.extensions:
            yield "command buffer", by_command_buffer(queue, kernel, count, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--count", type=int, default=400, help="launches in a row")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    tp.load_all()
    for way, (host, whole) in report(arguments):
        us = 1e6 / arguments.count
        print(json.dumps({"way": way, "host us": round(host * us, 2), "us": round(whole * us, 2)}))


if __name__ == "__main__":
    main()
