"""Runs one case on one device and compares the result with the reference."""

import re
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorplug.device import Backend, Device, Plan
from tensorplug_testing.cases import Case, node_of
from tensorplug_testing.cases.bounds import rounding_of
from tensorplug_testing.cases.laid import Laid, lay


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case: `passed`, `failed` or `refused`, and why."""

    case: str
    op: str
    verdict: str
    detail: str
    seed: int
    seconds: float
    cause: str = ""
    """A key that groups failures with the same likely cause; empty if the case did not fail."""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a dictionary."""
        return asdict(self)


OURS = frozenset({"tensorplug", "contextlib", "numpy"})
"""Packages whose source lines do not help to find a fault of a backend."""


def located(error: BaseException) -> str:
    """Type and text of `error`, and the innermost source line outside the packages OURS."""
    text, line = f"{type(error).__name__}: {error}", _line_of(error)
    return f"{text} ({line})" if line else text


def _line_of(error: BaseException) -> str:
    """File and number of the innermost source line outside OURS; empty if there is none."""
    frames = [
        (Path(frame.f_code.co_filename).name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in OURS
    ]
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def cause_of_error(kind: str, line: str, where: str) -> str:
    """The cause of a failure by an exception: its type and source line, else the op or test."""
    return f"{kind} at {line}" if line else f"{kind} in {where}"


_NUMBER = re.compile(r"<[^>]*>|-?\b\d[\w.+-]*")


def _cause_of_problem(op: str, text: str) -> str:
    """The op and the failure text without numbers, which differ between cases."""
    found = text.partition("): ")[2].partition(";")[0].partition(" > ")[0]
    return f"{op}: {' '.join(_NUMBER.sub('', found).split())}"


def refusal(case: Case, device: Device) -> str:
    """The reason why `device` refuses `case`; empty if it accepts it."""
    refused = device.refuses(node_of(case))
    return refused.reason if refused is not None else ""


AGAIN = 1 << 15
"""A plan runs twice if its leafs have at most this many elements; state that a plan wrongly keeps
does not depend on sizes."""


SECOND = "this was the second run of a plan, with other inputs; the first was right"


def problem(case: Case, backend: Backend, *, base: int = 0) -> str:
    """Compute `case` on `backend` and describe what is wrong; empty if nothing is.

    Results are compared with the reference. Sources and the bytes between tensors must not change.
    A small case runs twice with one plan, the second time with other values in every leaf,
    including weights and ids.
    """
    laid = lay(case, backend.buffer_type, base=base)
    try:
        with backend.plan(laid.bound) as plan:
            found = _run(plan, laid)
            if not found and sum(root.size for root in laid.built.stored) <= AGAIN:
                found = _run(plan, laid.redrawn(base))
                found = found and f"{found}; {SECOND}"
        return found
    finally:
        laid.buffers.close()


def _run(plan: Plan, laid: Laid) -> str:
    laid.write_leafs()
    plan.run()
    plan.backend.synchronize()
    return laid.problem(rounding_of(plan.backend, laid.built.node))


def check(case: Case, backend: Backend, *, base: int = 0) -> Outcome:
    """Run `case`; an exception becomes a failure with its type and text."""
    start, cause = time.perf_counter(), ""
    try:
        verdict, detail = "refused", refusal(case, backend.device)
        if not detail:
            detail = problem(case, backend, base=base)
            verdict = "failed" if detail else "passed"
            cause = _cause_of_problem(case.op, detail) if detail else ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - all is a finding
        verdict, detail = "failed", f"{case.id} (seed {case.seed(base)}): {located(error)}"
        cause = cause_of_error(type(error).__name__, _line_of(error), case.op)
    seconds = time.perf_counter() - start
    return Outcome(case.id, case.op, verdict, detail, case.seed(base), seconds, cause)
