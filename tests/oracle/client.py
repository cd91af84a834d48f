"""The tests' side: graphs as plain data, and the process that runs ggml, replaced when it ends."""

import contextlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from oracle.ggml import library_folder

import tensorplug as tp
from tensorplug.graph.tensor import Tensor
from tensorplug_cpu import reference
from tensorplug_testing.cases.case import Built

Array = npt.NDArray[Any]
PATIENCE = 600.0
"""Seconds for one answer, also where other work stops the machine for minutes."""

SPEECHLESS = "the process ended with status"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why ggml does not compute a graph."""

    reason: str


def outputs(built: Built) -> tuple[Tensor, ...]:
    """What is compared: the node, or the roots that it writes where writing is its purpose."""
    node = built.node
    return node.written_roots if tp.OPS[node.op].writes else (node,)


def program(built: Built) -> tuple[list[dict[str, Any]], list[int]]:
    """The tensors of a case as plain data, sources first, and which of them are compared."""
    graph = built.graph
    tensors = [*graph.leafs, *graph.nodes]
    index = {tensor: i for i, tensor in enumerate(tensors)}
    records = [_record(tensor, index, built.stored.get(tensor)) for tensor in tensors]
    return records, [index[tensor] for tensor in outputs(built)]


def _record(tensor: Tensor, index: dict[Tensor, int], stored: Array | None) -> dict[str, Any]:
    return {
        "op": tensor.op,
        "type": tensor.dtype.id,
        "unit": tensor.dtype.size,
        "ne": tensor.ne,
        "nb": tensor.nb,
        "operands": [None if t is None else index[t] for t in tensor.operands],
        "params": {k: v for k, v in tensor.params.items() if not callable(v)},
        "data": None if stored is None else stored.tobytes(),
    }


def values(type_id: int, ne: tuple[int, ...], data: bytes) -> Array:
    """Values of bytes that lie without gaps, in four dimensions, slowest first."""
    dtype = tp.dtype(type_id)
    stored = np.frombuffer(data, dtype.storage)
    row = dtype.row_size(ne[0]) if dtype.is_block else ne[0]
    with np.errstate(invalid="ignore"):  # memory that ggml left unwritten may hold any NaN
        return reference.decode(dtype, stored.reshape(*ne[:0:-1], row))


class Oracle:
    """A ggml in a process of its own."""

    def __init__(self) -> None:
        self.folder = library_folder()
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the oracle
        found = self.ask(None)
        assert not isinstance(found, Refusal), found.reason
        self.version: str = found
        self.release = tuple(int(n) for n in re.findall(r"\d+", found.split()[0]))
        """The numbers of the version; none where the library does not know it."""

    def close(self) -> None:
        """End the process."""
        self._end()
        self._errors.close()

    def renew(self) -> None:
        """End the process: what it does next, it does in fresh memory."""
        self._end()

    def run(self, built: Built) -> list[Array] | Refusal:
        """The values of what a case computes, or why ggml does not compute them."""
        found = self.ask(("run", *program(built)))
        return found if isinstance(found, Refusal) else [values(*output) for output in found]

    def decode(self, dtype: tp.DType, rows: Array) -> Array | Refusal:
        """f32 values of stored blocks, as ggml decodes them."""
        elements = rows.nbytes // dtype.size * dtype.block
        found = self.ask(("decode", dtype.id, rows.tobytes(), elements))
        return found if isinstance(found, Refusal) else np.frombuffer(found, np.float32)

    def encode(
        self, dtype: tp.DType, values: Array, importance: Array | None = None
    ) -> Array | Refusal:
        """Stored rows of f32 values, as the tools of ggml encode them."""
        row, size = values.shape[1], dtype.row_size(values.shape[1])
        weights = None if importance is None else importance.tobytes()
        found = self.ask(("encode", dtype.id, values.tobytes(), row, size, weights))
        if isinstance(found, Refusal):
            return found
        return np.frombuffer(found, np.uint8).reshape(len(values), size)

    def ask(self, question: Any) -> Any:
        """The answer to `question`, or a Refusal.

        A process that ends without a word is asked again in fresh memory: perhaps an earlier
        question has made ggml write where it should not.
        """
        found = self._ask(question)
        speechless = isinstance(found, Refusal) and found.reason.startswith(SPEECHLESS)
        return self._ask(question) if speechless else found

    def _ask(self, question: Any) -> Any:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(PATIENCE, process.kill)
        watch.start()
        try:
            pickle.dump(question, process.stdin)
            process.stdin.flush()
            verdict, found = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            return Refusal(self._last_words())
        finally:
            watch.cancel()
        if verdict == "error":
            raise AssertionError(f"the worker failed:\n{found}")
        return Refusal(found) if verdict == "refused" else found

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._errors.truncate(0)
            self._errors.seek(0)
            self.starts += 1
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={
                    **os.environ,
                    "TENSORPLUG_ORACLE": str(self.folder),
                    "GGML_NO_BACKTRACE": "1",
                },
            )
        return self._process

    def _last_words(self) -> str:
        """What ggml said before it ended, without the folder of its source file."""
        status = self._end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        told = [line for line in lines if re.search(r"\.(c|cpp|h):\d+:", line)]
        if told:
            return re.sub(r"^\S*/", "", told[0])
        return f"{SPEECHLESS} {status}: {' '.join(lines[-1:])}"

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
