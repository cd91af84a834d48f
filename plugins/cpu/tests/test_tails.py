"""The kit at tier `ci` finds, in every op, an element that is lost at the end of the last tile."""

from functools import cache

import numpy as np
import pytest

from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.kernels import KERNELS
from tensorplug_cpu.tiles import TILE
from tensorplug_testing.cases import Case
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select

from .kit_mutants import lost


@pytest.fixture(scope="module")
def stream():
    with CPUDevice("cpu:0") as device, device.open(threads=1) as backend:
        yield backend


@cache
def cases_of(op: str) -> list[Case]:
    """The cases of an op at tier `ci`, those that are larger than a tile first."""
    return sorted(select("ci", ops=[op]), key=lambda case: not case.always)


def without_the_last(kernel, task, met):
    """A kernel that loses its last element: of a large result, else of a large source."""
    if task.out.array.size > TILE:
        met.append("result")
        return lost(lambda n: n - 1)(kernel, task)
    for operand in task.operands:
        if operand is not None and operand.array.size > TILE and not operand.dtype.is_block:
            met.append("source")
            return with_last_source_changed(kernel, task, operand)
    return kernel(task)


def with_last_source_changed(kernel, task, operand):
    """Compute as if the last element of a source were something else, and put it back."""
    last = (-1,) * operand.array.ndim
    kept = []

    def change():
        kept.append(np.array(operand.array[last]))
        operand.array[last] = -8 if operand.array.dtype.kind == "f" else 0

    def restore():
        operand.array[last] = kept.pop()

    return [change, *kernel(task), restore]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", sorted(KERNELS))
def test_last_element_lost_is_found(op, stream, monkeypatch):
    kernel, met = KERNELS[op], []
    monkeypatch.setitem(KERNELS, op, lambda task: without_the_last(kernel, task, met))

    outcomes = (check(case, stream) for case in cases_of(op))

    assert any(o.verdict == "failed" and "Error: " not in o.detail for o in outcomes)
    assert met, "no case of this op is larger than a tile"
