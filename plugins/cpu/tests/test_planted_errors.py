"""The kit catches errors that are planted in the kernels of every op, one at a time.

Each kind of error stands for a slip that kernels really have: an element left out, one too many, a
wrong constant, a wrong index, a stride taken for granted, a source overwritten.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tensorplug as tp
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.kernels import KERNELS
from tensorplug_testing.cases import SMALL
from tensorplug_testing.check import check

MOST = 400
"""Cases of an op that are tried before an error counts as missed."""


def last_element_left_out(task):
    out = task.out.array
    last = out[(slice(-1, None),) * out.ndim]
    kept = last.copy()

    def restore():
        last[...] = kept

    return [restore]


def one_element_too_far(task):
    out = task.out.array
    reach = sum((n - 1) * s for n, s in zip(out.shape, out.strides, strict=True)) // out.itemsize
    beyond = as_strided(out, (reach + 2,), (out.itemsize,))[-1:]

    def write():
        beyond[...] = 1

    return [write]


def wrong_constant(task):
    out = task.out.array

    def scale():
        if out.dtype.kind == "f":
            np.add(np.multiply(out, 1.1, out=out, casting="unsafe"), 0.1, out=out, casting="unsafe")
        else:
            np.add(out, 1, out=out, casting="unsafe")

    return [scale]


def neighbours_swapped(task):
    out = task.out.array

    def roll():
        out[...] = np.roll(out.reshape(-1), 1).reshape(out.shape)

    return [roll]


def source_overwritten(task):
    source = next(o for o in task.operands if o is not None).array

    def change():
        view = source[(slice(0, 1),) * source.ndim]
        view[...] = ~view if view.dtype.kind in "iu" else view + 1

    return [change]


def strides_taken_for_granted(task, source):
    """The task with a source that is read as if it lay without gaps."""
    index = tp.OPS[task.node.op].positions[source]
    if task.operands[index] is None:
        return task
    array = task.operands[index].array
    steps = np.cumprod([array.itemsize, *array.shape[:0:-1]])[::-1]
    operands = list(task.operands)
    operands[index] = replace(
        operands[index], array=as_strided(array, array.shape, steps, writeable=False)
    )
    return replace(task, operands=tuple(operands))


def kept_from_the_first_run(kernel, task, source):
    """The steps of a kernel that sees what lay in a source when its plan first ran."""
    index = tp.OPS[task.node.op].positions[source]
    if task.operands[index] is None:
        return kernel(task)
    array = task.operands[index].array
    kept = np.empty_like(array)
    operands = list(task.operands)
    seen = []

    def keep():
        if not seen:
            kept[...] = array
            seen.append(source)

    operands[index] = replace(operands[index], array=kept)
    return [keep, *kernel(replace(task, operands=tuple(operands)))]


AFTERWARDS = {
    "last element left out": last_element_left_out,
    "one element too far": one_element_too_far,
    "wrong constant": wrong_constant,
    "neighbours swapped": neighbours_swapped,
    "source overwritten": source_overwritten,
}

ONE_ELEMENT = {"sum", "count_equal", "cross_entropy_loss"}
WRITERS = {"set_rows", "opt_step_adamw", "opt_step_sgd"}
EQUIVALENT = {
    "neighbours swapped": ONE_ELEMENT | {"fill"},
    "source overwritten": WRITERS | {"arange"},
}
"""Ops for which an error of a kind changes nothing: no such source, or no such neighbour."""

ALWAYS_CONTIGUOUS = {
    ("acc", "a"),
    ("set", "a"),
    ("fill", "x"),
    ("cross_entropy_loss_back", "grad"),
    ("add1", "b"),
    *((op, "kernel") for op in ("im2col", "im2col_back", "im2col_3d")),
    *((op, "settings") for op in WRITERS),
}
"""Sources that the op demands without gaps, does not read, or whose one element has no strides."""

OPS = sorted(name for name, op in tp.OPS.items() if not op.is_view and "." not in name)
CASES = {op: [case for case in SMALL if case.op == op and not case.in_place] for op in OPS}
PLANTED = [(kind, op) for kind in AFTERWARDS for op in OPS if op not in EQUIVALENT.get(kind, ())]
STRIDED = [
    (op, source.name)
    for op in OPS
    for source in tp.OPS[op].sources
    if (op, source.name) not in ALWAYS_CONTIGUOUS
    and not (tp.OPS[op].writes and source.name in (tp.OPS[op].sources[0].name, "target", "m", "v"))
]
SHAPE_ONLY = {("fill", "x"), *((op, "kernel") for op in ("im2col", "im2col_back", "im2col_3d"))}
"""Sources of which an op reads the sizes and nothing else."""
KEPT = [
    (op, source.name)
    for op in OPS
    for source in tp.OPS[op].sources
    if (op, source.name) not in SHAPE_ONLY
    and not (tp.OPS[op].writes and source.name in (tp.OPS[op].sources[0].name, "target", "m", "v"))
]


@pytest.fixture(scope="module")
def stream():
    with CPUDevice("cpu:0") as device, device.open(threads=1) as backend:
        yield backend


def caught(op, stream):
    """Whether some case of `op` gives wrong values or finds memory changed."""
    for case in CASES[op][:MOST]:
        outcome = check(case, stream)
        if outcome.verdict == "failed":
            assert "Error: " not in outcome.detail
            return True
    return False


@pytest.mark.parametrize(("kind", "op"), PLANTED, ids=lambda value: value.replace(" ", "_"))
def test_error_after_the_kernel_is_caught(kind, op, stream, monkeypatch):
    kernel = KERNELS[op]
    monkeypatch.setitem(KERNELS, op, lambda task: [*kernel(task), *AFTERWARDS[kind](task)])

    assert caught(op, stream)


@pytest.mark.parametrize(("op", "source"), STRIDED)
def test_source_read_as_if_it_had_no_gaps_is_caught(op, source, stream, monkeypatch):
    kernel = KERNELS[op]
    monkeypatch.setitem(KERNELS, op, lambda task: kernel(strides_taken_for_granted(task, source)))

    assert caught(op, stream)


@pytest.mark.parametrize(("op", "source"), KEPT)
def test_source_kept_from_the_first_run_of_a_plan_is_caught(op, source, stream, monkeypatch):
    kernel = KERNELS[op]
    monkeypatch.setitem(KERNELS, op, lambda task: kept_from_the_first_run(kernel, task, source))

    assert caught(op, stream)
