"""The highest rates that a GPU reaches: bandwidth, products of matrices, transfers.

Other results are given as shares of them. All are measured with CuPy, and products also with
cuBLASLt: CuPy does not multiply bf16.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from cuda_measure import Bench, NotRun, seconds
from cupy import cuda
from cupy.cuda import runtime

import tensorplug as tp
from tensorplug_cuda import cublaslt as lt

BLOCK = 1 << 22
"""Bytes of random numbers that fill memory."""
INNER = 2
"""How much longer sums of a product are than its sides, so that the results weigh little."""
ANY_WAY = 4


class Memories:
    """Memory of the GPU with random numbers, and a stream."""

    def __init__(self) -> None:
        self.stream = cuda.Stream(non_blocking=True)
        self._random = np.random.default_rng(1)

    def filled(self, size: int, dtype: Any = np.float32) -> Any:
        """Random numbers around 0; bits of bf16 for uint16. A GPU is faster with zeros."""
        block = self._random.standard_normal(min(size, BLOCK) // 4, np.float32)
        if dtype == np.uint16:
            block = (block.view(np.uint32) >> 16).astype(np.uint16)
        block = np.ascontiguousarray(block.astype(dtype, copy=False))
        memory = cuda.MemoryPointer(cuda.Memory(size), 0)
        for start in range(0, size, block.nbytes):
            count = min(block.nbytes, size - start)
            target, source = memory.ptr + start, block.ctypes.data
            runtime.memcpyAsync(target, source, count, ANY_WAY, self.stream.ptr)
        self.stream.synchronize()
        return memory

    def empty(self, size: int) -> Any:
        """Memory with anything in it."""
        return cuda.MemoryPointer(cuda.Memory(size), 0)


def limits(bench: Bench) -> dict[str, float]:
    """The highest bandwidth in GB/s and rate of bf16 in TFLOP/s, where they can be measured."""
    found = {"bandwidth": _tried(bench, BANDWIDTHS), "bf16": _tried(bench, RATES)}
    known = {
        what: [rate for rate in ways.values() if isinstance(rate, float)]
        for what, ways in found.items()
    }
    if bench.emulated:
        # A rehearsal tells no number: any will do for what the stand-in for CuPy cannot measure.
        known = {what: rates or [1.0] for what, rates in known.items()}
    if not any(known.values()):
        raise NotRun(f"no ceiling could be measured: {found}")
    return {what: max(rates) for what, rates in known.items() if rates}


def section(bench: Bench) -> dict[str, Any]:
    """All ceilings, or why one could not be measured, and the `used` ones that shares refer to.

    Those were measured earlier in the run: a difference shows how much the GPU's speed changed.
    """
    unit = {**dict.fromkeys(BANDWIDTHS, "GB/s"), **dict.fromkeys(RATES, "TFLOP/s")}
    unit |= dict.fromkeys(TRANSFERS, "GB/s")
    found: dict[str, Any] = {
        "used": {
            name: bench.figure(f"ceiling of {name}", ceiling, USED[name])
            for name, ceiling in bench.ceilings.items()
        }
    }
    for table in (BANDWIDTHS, RATES, TRANSFERS):
        for name, rate in _tried(bench, table).items():
            found[name] = (
                {"not run": rate} if isinstance(rate, str) else bench.figure(name, rate, unit[name])
            )
    return found


def _tried(bench: Bench, table: "dict[str, Measure]") -> dict[str, float | str]:
    """The rate of each way, or why there is none."""
    found: dict[str, float | str] = {}
    for name, measure in table.items():
        try:
            found[name] = float(f"{measure(bench):.4g}")
        except Exception as reason:  # noqa: BLE001 - one way that fails leaves the others
            found[name] = f"{type(reason).__name__}: {reason}"
    return found


# --- bandwidth -----------------------------------------------------------------------------------


def copy(bench: Bench) -> float:
    """GB/s of a copy within the GPU, of what is read and what is written."""
    size, memories = bench.sizes.transfer, Memories()
    source, target = memories.filled(size), memories.empty(size)
    stream = memories.stream

    def work() -> None:
        runtime.memcpyAsync(target.ptr, source.ptr, size, ANY_WAY, stream.ptr)

    return 2 * size / seconds(work, stream.synchronize, bench.sizes.seconds) / 1e9


def triad(bench: Bench) -> float:
    """GB/s of a + 3 b into c, by a kernel of CuPy's."""
    bench.only_on_a_gpu("kernels of CuPy's own")
    size, memories = bench.sizes.transfer, Memories()
    a, b, c = (
        cupy.ndarray((size // 4,), np.float32, memory)
        for memory in (memories.filled(size), memories.filled(size), memories.empty(size))
    )
    kernel = cupy.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a + 3 * b", "triad")
    with memories.stream as stream:
        took = seconds(lambda: kernel(a, b, c), stream.synchronize, bench.sizes.seconds)
    return 3 * size / took / 1e9


def read(bench: Bench) -> float:
    """GB/s of a sum by CuPy, which reads memory and writes almost nothing."""
    bench.only_on_a_gpu("sums")
    size, memories = bench.sizes.transfer, Memories()
    numbers = cupy.ndarray((size // 4,), np.float32, memories.filled(size))
    total = cupy.ndarray((), np.float32, memories.empty(4))
    with memories.stream as stream:
        took = seconds(lambda: numbers.sum(out=total), stream.synchronize, bench.sizes.seconds)
    return size / took / 1e9


# --- products ------------------------------------------------------------------------------------


def by_cublaslt(dtype: tp.DType) -> "Measure":
    """TFLOP/s of a product with results in f32."""

    def measure(bench: Bench) -> float:
        reason = lt.missing()
        if reason:
            raise NotRun(reason)
        side, inner = bench.sizes.product_side, INNER * bench.sizes.product_side
        kind = np.float16 if dtype is tp.F16 else np.uint16
        memories = Memories()
        w, x = (memories.filled(2 * side * inner, kind) for _ in range(2))
        y, workspace = memories.empty(4 * side * side), memories.empty(lt.WORKSPACE)
        with _handle() as handle:
            matrices = (
                lt.Matrix(w.ptr, dtype, inner, side, inner, 0),
                lt.Matrix(x.ptr, dtype, inner, side, inner, 0),
                lt.Matrix(y.ptr, tp.F32, side, side, side, 0),
            )
            recipe = lt.Recipe(handle, *(matrix.layout for matrix in matrices), 1)
            product = lt.Product(handle, workspace.ptr, recipe, *matrices)
            stream = memories.stream
            work: Callable[[], object] = lambda: product(None, None, None, stream=stream)  # noqa: E731
            took = seconds(work, stream.synchronize, bench.sizes.seconds)
        return 2 * side * side * inner / took / 1e12

    return measure


@contextmanager
def _handle() -> Iterator[Any]:
    handle = lt.new_handle()
    try:
        yield handle
    finally:
        lt.destroy_handle(handle)


def by_cupy(bench: Bench) -> float:
    """TFLOP/s of f16 by CuPy."""
    bench.only_on_a_gpu("products")
    side, inner = bench.sizes.product_side, INNER * bench.sizes.product_side
    memories = Memories()
    w = cupy.ndarray((side, inner), np.float16, memories.filled(2 * side * inner, np.float16))
    x = cupy.ndarray((inner, side), np.float16, memories.filled(2 * side * inner, np.float16))
    y = cupy.ndarray((side, side), np.float16, memories.empty(2 * side * side))
    with memories.stream as stream:
        took = seconds(lambda: cupy.matmul(w, x, out=y), stream.synchronize, bench.sizes.seconds)
    return 2 * side * side * inner / took / 1e12


# --- transfers -----------------------------------------------------------------------------------


def transfer(*, pinned: bool, to_gpu: bool) -> "Measure":
    """GB/s between the host and the GPU."""

    def measure(bench: Bench) -> float:
        size, memories = bench.sizes.transfer // 4, Memories()
        there, stream = memories.filled(size), memories.stream
        plain = np.ones(size, np.uint8)
        held = cuda.PinnedMemoryPointer(cuda.PinnedMemory(size), 0) if pinned else None
        here = plain.ctypes.data if held is None else held.ptr
        to, of = (there.ptr, here) if to_gpu else (here, there.ptr)

        def work() -> None:
            runtime.memcpyAsync(to, of, size, ANY_WAY, stream.ptr)

        return size / seconds(work, stream.synchronize, bench.sizes.seconds) / 1e9

    return measure


Measure = Callable[[Bench], float]
USED = {"bandwidth": "GB/s", "bf16": "TFLOP/s"}
BANDWIDTHS: dict[str, Measure] = {"copy": copy, "triad": triad, "read": read}
RATES: dict[str, Measure] = {
    "bf16 by cuBLASLt": by_cublaslt(tp.BF16),
    "f16 by cuBLASLt": by_cublaslt(tp.F16),
    "f16 by CuPy": by_cupy,
}
TRANSFERS: dict[str, Measure] = {
    f"{'pinned' if pinned else 'pageable'} {'to' if to_gpu else 'from'} the GPU": transfer(
        pinned=pinned, to_gpu=to_gpu
    )
    for pinned in (True, False)
    for to_gpu in (True, False)
}
