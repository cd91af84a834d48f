"""One case on one device: computed, compared, judged."""

import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorplug.backend import Backend
from tensorplug.device import Device
from tensorplug.errors import Refusal
from tensorplug.testing.cases import Case, node_of
from tensorplug.testing.cases.laid import lay


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: `passed`, `failed` or `refused`, and why."""

    case: str
    op: str
    verdict: str
    detail: str
    seed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


OURS = frozenset({"tensorplug", "contextlib", "numpy"})
"""Packages whose lines say little about a fault of a backend."""


def located(error: BaseException) -> str:
    """Type and text of `error`, and the innermost line that is not of OURS: where to look."""
    text = f"{type(error).__name__}: {error}"
    frames = [
        (Path(frame.f_code.co_filename).name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in OURS
    ]
    return f"{text} ({frames[-1][0]}:{frames[-1][1]})" if frames else text


def refusal(case: Case, device: Device) -> str:
    """Why `device` does not compute `case`; empty if it says that it does."""
    answer = device.supports(node_of(case))
    return answer.reason if isinstance(answer, Refusal) else ""


def problem(case: Case, backend: Backend, *, base: int = 0) -> str:
    """What is wrong with what `backend` computes for `case`; empty where nothing is.

    Values are compared with the reference; sources and the bytes between tensors must be as before.
    """
    laid = lay(case, backend.buffer_type, base=base)
    try:
        laid.write_leafs()
        backend.compute(laid.bound)
        return laid.problem()
    finally:
        laid.buffers.close()


def check(case: Case, backend: Backend, *, base: int = 0) -> Outcome:
    """Run `case`; an exception is a failure with its type and its text."""
    start = time.perf_counter()
    try:
        verdict, detail = "refused", refusal(case, backend.device)
        if not detail:
            detail = problem(case, backend, base=base)
            verdict = "failed" if detail else "passed"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - all is a finding
        verdict, detail = "failed", f"{case.id} (seed {case.seed(base)}): {located(error)}"
    seconds = time.perf_counter() - start
    return Outcome(case.id, case.op, verdict, detail, case.seed(base), seconds)
