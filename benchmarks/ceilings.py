"""What this processor gives at most, for shares of it: JSON. It compiles `ceilings.c` with `cc`.

`read` is GB/s of reading memory that no cache holds, the operations of f32, eight-bit and bf16 are
in GFLOP/s (0 where there is no such instruction), and `hop_ns` is what a word takes from one core
to another: on a virtual machine it tells whether two processors are near each other.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("ceilings.c")
BYTES = 1 << 28
KINDS = ("f32", "int8", "bf16")


@cache
def library() -> ctypes.CDLL:
    """The compiled functions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ceilings.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(path)]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(path))
    loaded.read_seconds.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    for function in (loaded.read_seconds, loaded.operations, loaded.hop_seconds):
        function.restype = ctypes.c_double
    return loaded


@cache
def memory() -> "np.ndarray":
    """More bytes than caches hold."""
    return np.ones(BYTES // 8, np.int64)


def ceilings(threads: int, repeats: int = 5) -> dict[str, float]:
    """Medians of `repeats`."""
    calls, data = library(), memory()
    reads = [calls.read_seconds(data.ctypes.data, BYTES, threads) for _ in range(repeats)]
    found = {"read": BYTES / statistics.median(reads) / 1e9}
    for i, kind in enumerate(KINDS):
        rates = [calls.operations(i, threads) for _ in range(repeats)]
        found[kind] = statistics.median(rates) / 1e9
    found["hop_ns"] = statistics.median(calls.hop_seconds() for _ in range(repeats)) * 1e9
    return {name: round(figure, 1) for name, figure in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    print(json.dumps(ceilings(parser.parse_args().threads)))


if __name__ == "__main__":
    main()
