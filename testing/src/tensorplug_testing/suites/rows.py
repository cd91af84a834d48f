"""`RowIdTests`: wrong row ids raise an error, or do no harm."""

from contextlib import suppress

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Array, Backend, Device, Tensor, transfer
from tensorplug.errors import GraphError
from tensorplug.ops.ids import NO_ROW
from tensorplug_cpu import reference
from tensorplug_testing.cases import Case
from tensorplug_testing.cases.case import Arg, Data, distinct
from tensorplug_testing.cases.laid import Laid, lay
from tensorplug_testing.cases.ssm import ssm_scan
from tensorplug_testing.check import refusal

ROWS = 5
"""Rows of each table."""
OUTSIDE = (-2, -3, ROWS, ROWS + 1, 1 << 20, 2**31 - 1, -(2**31))
FAR = (2**32, 2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63))
"""64-bit ids whose lower 32 bits may be a valid row."""


def _with(wrong: int) -> Data:
    """Different rows, with `wrong` as the second to last id."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        ids = np.array(distinct(ROWS).draw(rng, shape), np.int64)
        ids[..., -2 if shape[-1] > 1 else -1] = wrong
        return ids

    return Data(f"with_{wrong}", draw)


def _cases(wrong: int, ids: tp.DType = tp.I32) -> list[Case]:
    def numbers(*ne: int) -> Arg:
        return Arg(ne, ids, data=_with(wrong))

    tables = (tp.F32, tp.F16, tp.Q8_0, tp.Q4_K)
    written = (tp.F32, tp.BF16, tp.Q8_0)
    cases = [
        Case(op="set_rows", args=(Arg((256, ROWS), t), Arg((256, 4)), numbers(4))) for t in written
    ]
    if ids is not tp.I32:
        return cases
    one, many = numbers(2, 1), numbers(2, 7)
    return [
        *cases,
        *[Case(op="get_rows", args=(Arg((256, ROWS), t), numbers(3))) for t in tables],
        Case(
            op="get_rows_back",
            args=(Arg((32, 4)), numbers(4)),
            params={"ne": (32, ROWS, 1, 1)},
        ),
        Case(op="add_id", args=(Arg((32, 2, 7)), Arg((32, ROWS)), many)),
        *[
            Case(op="mul_mat_id", args=(Arg((256, 33, ROWS), t), Arg((256, 1, ids.ne[1])), ids))
            for t in tables
            for ids in (one, many)
        ],
        ssm_scan((16, 8, 4, 2, 5, 3), s=Arg((16, 8, 4, ROWS)), ids=numbers(3)),
    ]


CASES = [
    *[case for wrong in OUTSIDE for case in _cases(wrong)],
    *[case for wrong in FAR for case in _cases(wrong, tp.I64)],
]
TARGETS = frozenset({"set_rows", "get_rows_back"})
"""Ops whose ids say which row to write: a wrong id writes nothing, not even NaN."""


class RowIdTests:
    """A wrong id raises GraphError, or changes only results that depend on it.

    The id -1, which stands for no row, is tested by the cases of the ops.
    """

    @pytest.mark.parametrize("misuse", CASES, ids=[case.id for case in CASES])
    def test_wrong_id_is_an_error_or_does_no_harm(
        self, misuse: Case, device: Device, backend: Backend, kit_seed: int
    ) -> None:
        reason = refusal(misuse, device)
        if reason:
            pytest.skip(reason)
        laid = lay(misuse, backend.buffer_type, base=kit_seed)
        try:
            laid.write_leafs()
            try:
                backend.compute(laid.bound)
            except GraphError as error:
                with suppress(GraphError):  # several streams of a meta device may raise it
                    backend.synchronize()
                problem = _problem_of(error, laid)
            else:
                problem = _harm(laid)
        finally:
            laid.buffers.close()

        assert problem == ""


def _problem_of(error: GraphError, laid: Laid) -> str:
    """Describe what is wrong with an error for a wrong id, or with memory written before it."""
    if "names no row" not in str(error):
        return f"the error does not say what is wrong: {error}"
    for root, stored in laid.built.stored.items():
        if transfer.read(root, laid.bindings).tobytes() != stored.tobytes():
            return f"{root} was changed before the wrong id was noticed"
    return laid.changed_guards()


def _harm(laid: Laid) -> str:
    """Describe the harm of a wrong id that raised no error; empty if there is none."""
    node = laid.built.node
    (root,) = laid.results
    without, first = (_wanted(laid, instead) for instead in (NO_ROW, 0))
    got = reference.decode(root.dtype, transfer.read(root, laid.bindings))
    spoilt = np.zeros(got.shape, bool)
    if node.op not in TARGETS:
        spoilt |= without != first
    if got.ndim > 1:
        spoilt |= spoilt.any(-1, keepdims=True)
    good = np.isclose(got, without, rtol=0.05, atol=0.05 * np.abs(without).max(initial=1e-9))
    if not good[~spoilt].all():
        return f"{np.count_nonzero(~good & ~spoilt)} elements that depend on right ids are wrong"
    if not (good | np.isnan(got))[spoilt].all():
        return "rows of a wrong id are neither NaN nor equal to those of the id -1"
    return laid.changed_leafs() or laid.changed_guards()


def _wanted(laid: Laid, instead: int) -> Array:
    """The result of the reference with `instead` in place of wrong ids."""
    ids = laid.built.node.operands[-1]
    assert ids is not None
    held = laid.built.stored[ids.root]
    right = np.where((held < 0) | (held >= ROWS), instead, held).astype(held.dtype)
    stored: dict[Tensor, Array] = {**laid.built.stored, ids.root: right}
    memory = reference.execute(laid.built.graph, stored)
    (root,) = laid.results
    wanted: Array = memory.value(root).reshape(root.shape)
    return wanted
