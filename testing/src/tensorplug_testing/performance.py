"""Measures the speed of a device: time of a case, GB/s and GFLOP/s."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

from tensorplug.device import Backend, Tensor
from tensorplug.text import table
from tensorplug_testing.cases import Case
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.check import located, refusal
from tensorplug_testing.run import as_csv

MINIMUM = 0.2
"""Seconds for which each case is repeated."""
SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """The median time of one run of a case; a rate is 0 if it is not meaningful for the op."""

    case: str
    op: str
    runs: int = 0
    microseconds: float = 0.0
    gigabytes_per_second: float = 0.0
    gigaflops_per_second: float = 0.0
    refusal: str = ""
    failed: bool = False
    """True if the device accepted the case and then failed."""

    def to_json(self) -> dict[str, Any]:
        """Return the figure as a dictionary."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one device."""

    device: str
    figures: tuple[Figure, ...]

    @property
    def passed(self) -> bool:
        """True if the device computed every case that it accepted."""
        return not any(figure.failed for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary with a summary, and one record for each case."""
        measured = sum(not f.refusal for f in self.figures)
        ops = len({f.op for f in self.figures if not f.refusal})
        refused = len(self.figures) - measured
        summary = {"device": self.device, "measured": measured, "refused": refused, "ops": ops}
        return {"summary": summary, "records": [f.to_json() for f in self.figures]}

    def to_csv(self) -> str:
        """One line for each case."""
        return as_csv([f.name for f in fields(Figure)], [f.to_json() for f in self.figures])

    def __str__(self) -> str:
        rows = [_row(figure) for figure in self.figures]
        return "\n".join(table(("us/run", "GB/s", "GFLOP/s", "case"), rows))


def _row(figure: Figure) -> list[str]:
    if figure.refusal:
        return ["-", "-", "-", f"{figure.case}: {figure.refusal}"]
    flops = f"{figure.gigaflops_per_second:.2f}" if figure.gigaflops_per_second else "-"
    rate = f"{figure.gigabytes_per_second:.2f}"
    return [f"{figure.microseconds:.1f}", rate, flops, figure.case]


def measure(case: Case, backend: Backend, *, base: int = 0) -> Figure:
    """Plan `case` once, warm up with one run, and time repeated runs; an error is noted."""
    try:
        reason = refusal(case, backend.device)
        return Figure(case.id, case.op, refusal=reason) if reason else _timed(case, backend, base)
    except Exception as error:  # noqa: BLE001 - a case that fails must not stop the others
        return Figure(case.id, case.op, refusal=located(error), failed=True)


def _timed(case: Case, backend: Backend, base: int) -> Figure:
    laid = lay(case, backend.buffer_type, base=base)
    try:
        laid.write_leafs()
        with backend.plan(laid.bound) as plan:
            once = _seconds(plan.run, backend, 1)
            runs = max(1, int(MINIMUM / SAMPLES / max(once, 1e-7)))
            seconds = statistics.median(_seconds(plan.run, backend, runs) for _ in range(SAMPLES))
    finally:
        laid.buffers.close()
    node = laid.built.node
    moved = node.nbytes + sum(source.nbytes for source in node.sources)
    work = operations(node)
    return Figure(
        case.id,
        case.op,
        runs * SAMPLES,
        seconds * 1e6,
        moved / seconds / 1e9,
        work / seconds / 1e9,
    )


def _seconds(run: Callable[[], None], backend: Backend, times: int) -> float:
    """Mean seconds of one run, of `times` runs queued one after another."""
    start = time.perf_counter()
    for _ in range(times):
        run()
    backend.synchronize()
    return (time.perf_counter() - start) / times


def operations(node: Tensor) -> int:
    """The number of multiplications and additions of a node; 0 for ops without a GFLOP/s rate."""
    count = _OPERATIONS.get(node.op)
    return 0 if count is None else count(node)


def _per_row(node: Tensor) -> int:
    return 2 * node.size * node.sources[0].ne[0]


def _outer(node: Tensor) -> int:
    return 2 * node.size * node.sources[0].ne[1]


def _convolution(node: Tensor) -> int:
    kernel = node.sources[0]
    return 2 * node.size * kernel.size // max(1, node.ne[2])


def _depthwise(node: Tensor) -> int:
    return 2 * node.size * prod(node.sources[0].ne[:2])


def _attention(node: Tensor) -> int:
    q, k, v = node.sources[:3]
    return 2 * q.rows * k.ne[1] * (k.ne[0] + v.ne[0])


_OPERATIONS: dict[str, Callable[[Tensor], int]] = {
    "mul_mat": _per_row,
    "mul_mat_id": _per_row,
    "out_prod": _outer,
    "conv_2d": _convolution,
    "conv_2d_dw": _depthwise,
    "flash_attn_ext": _attention,
}
