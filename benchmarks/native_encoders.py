"""f32 encoded into block types by the compiled encoders and by ggml's, in turns, as JSON.

Both encode slabs of rows as `tensorplug quantize` does, as many at a time as there are threads.
Millions of weights per second, medians of the rounds; `ratio` is the median of the rounds' ratios,
ggml's time over ours. `same` is the share of equal blocks. ggml is found as `ggml_matmul.py` finds
it; NumPy is what tensorplug-cpu has, one round.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug_cpu.encode import encode_rows
from tensorplug_cpu.quantize.rows import SLAB, installed_encoder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracle.ggml import Ggml, library_folder

TYPES = "q4_0,q8_0,q4_K,q5_K,q6_K"
ROW = 4096

Encode = Callable[[np.ndarray, np.ndarray], None]
"""Encodes f32 rows, on the calling thread."""


def seconds(encode: Encode, values: np.ndarray, out: np.ndarray, pool: Executor) -> float:
    """How long all rows take."""
    high = SLAB // ROW
    parts = [slice(row, row + high) for row in range(0, len(values), high)]
    start = time.perf_counter()
    list(pool.map(lambda part: encode(values[part], out[part]), parts))
    return time.perf_counter() - start


def compare(dtype: tp.DType, ggml: Ggml, rows: int, threads: int, rounds: int) -> dict[str, object]:
    """The speeds of one type."""
    values = np.random.default_rng(0).normal(size=(rows, ROW)).astype(np.float32)
    out = {name: np.empty((rows, dtype.row_size(ROW)), np.uint8) for name in ("ours", "ggml")}
    installed = installed_encoder()
    chunk = ggml.typed("ggml_quantize_chunk", "zittlllt")

    def ours(x: np.ndarray, stored: np.ndarray) -> None:
        installed(dtype, x, stored, None)

    def theirs(x: np.ndarray, stored: np.ndarray) -> None:
        chunk(dtype.id, x.ctypes.data, stored.ctypes.data, 0, len(x), ROW, None)

    def numpys(x: np.ndarray, stored: np.ndarray) -> None:
        encode_rows(dtype, x, stored)

    with ThreadPoolExecutor(threads) as pool:
        found = [
            (seconds(ours, values, out["ours"], pool), seconds(theirs, values, out["ggml"], pool))
            for _ in range(rounds + 1)
        ][1:]
        part = values[: max(rows // 16, 1)]
        numpys(part[:1], np.empty_like(out["ours"][:1]))  # imports what it needs
        numpy = seconds(numpys, part, np.empty_like(out["ours"][: len(part)]), pool)
    mine, others = (statistics.median(side) for side in zip(*found, strict=True))
    blocks = [raw.reshape(-1, dtype.size) for raw in out.values()]
    return {
        "type": dtype.name,
        "threads": threads,
        "ours": round(values.size / mine / 1e6, 1),
        "ggml": round(values.size / others / 1e6, 1),
        "numpy": round(part.size / numpy / 1e6, 1),
        "ratio": round(statistics.median(b / a for a, b in found), 2),
        "same": round(float(np.mean((blocks[0] == blocks[1]).all(axis=1))), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rows", type=int, default=2048, help=f"rows of {ROW} values")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    ggml = Ggml(library_folder())
    for name in given.types.split(","):
        found = compare(tp.dtype(name), ggml, given.rows, given.threads, given.rounds)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
