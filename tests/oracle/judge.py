"""One case on ggml, on our device and in the reference, and how near they must be."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from oracle.client import Oracle, Refusal, outputs
from oracle.formulas import FORMULAS
from oracle.known import reason, unasked
from oracle.report import Finding

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import Backend
from tensorplug_cpu import reference
from tensorplug_testing.cases.case import Built, Case, build
from tensorplug_testing.cases.compare import difference, normalised_error
from tensorplug_testing.cases.laid import lay

Array = npt.NDArray[Any]

CASES_PER_OP = 60
STRICT = 1e-7
TABLED = 1e-6
"""ggml looks up these functions in a table of f16."""
NARROW = 5e-4
"""ggml rounds the other operand too: to f16, to bf16, or to blocks of 8-bit integers."""

LIMITS: dict[str, float] = {
    **dict.fromkeys(("gelu", "gelu_quick", "geglu", "geglu_quick"), TABLED),
    "soft_max": 1e-6,
    "lightning_indexer": 1e-6,
    "ssm_scan": 2e-7,
    "flash_attn_ext": NARROW,
}
"""Bounds of the normalised mean square error that differ from `STRICT`."""

_PRODUCTS = """
    mul_mat mul_mat_id out_prod conv_2d conv_3d conv_2d_dw conv_transpose_1d conv_transpose_2d
    im2col im2col_3d col2im_1d
"""
PRODUCTS = frozenset(_PRODUCTS.split())
"""Ops that have `NARROW` where a source is narrower than f32, and `STRICT` else."""

PICKS = frozenset({"argmax", "argsort", "top_k"})
"""Ops whose results are indices."""


def examine(case: Case, oracle: Oracle, backend: Backend) -> Finding:
    """Compare what ggml computes for `case` with what `backend` and the reference compute."""
    if unasked(case):
        return Finding(case.op, case.types, "refused", unasked(case))
    built = build(case)
    wanted = oracle.run(built)
    if isinstance(wanted, Refusal):
        return Finding(case.op, case.types, "refused", wanted.reason)
    answer = backend.device.refuses(built.node)
    if answer is not None:
        return Finding(case.op, case.types, "ours", answer.reason)
    ours, plain = _on_device(case, backend), _in_reference(built)
    between = _first_problem(case, built, ours, plain)
    detail = _first_problem(case, built, ours, wanted) or _first_problem(case, built, plain, wanted)
    if detail:
        oracle.renew()  # ggml may have written where it should not
    known = reason(case, oracle.release)
    if between or (detail and not known):
        return Finding(case.op, case.types, "differs", between or detail)
    if detail:
        return Finding(case.op, case.types, "otherwise", known)
    return Finding(case.op, case.types, "same", error=_worst(case, ours, wanted))


def examine_formula(case: Case, backend: Backend) -> Finding:
    """Compare what the formula of `case` gives with what `backend` and the reference compute."""
    built = build(case)
    peer, formula = FORMULAS[case.op]
    answer = backend.device.refuses(built.node)
    if answer is not None:
        return Finding(case.op, case.types, "ours", answer.reason, peer=peer)
    (wanted,) = outputs(built)
    sources = [_value(source, built) for source in built.node.sources]
    exact = formula(built.node.params, sources).reshape(wanted.ne[::-1])
    if wanted.dtype in (tp.F16, tp.BF16) or case.compare == "encoded":
        exact = reference.decode(wanted.dtype, reference.encode(wanted.dtype, exact))
    values = [exact]
    ours, plain = _on_device(case, backend), _in_reference(built)
    detail = _first_problem(case, built, ours, values) or _first_problem(case, built, plain, values)
    verdict = "differs" if detail else "same"
    return Finding(case.op, case.types, verdict, detail, _worst(case, ours, values), peer)


def _value(tensor: tp.Tensor, built: Built) -> Array:
    """The values of a source, in four dimensions."""
    return reference.execute(tp.Graph(tp.dup(tensor)), built.stored).value(tensor)


def _on_device(case: Case, backend: Backend) -> list[Array]:
    """The values of the results, in four dimensions."""
    laid = lay(case, backend.buffer_type)
    try:
        laid.write_leafs()
        backend.compute(laid.bound)
        return [
            reference.decode(t.dtype, transfer.read(t, laid.bindings)).reshape(t.ne[::-1])
            for t in outputs(laid.built)
        ]
    finally:
        laid.buffers.close()


def _in_reference(built: Built) -> list[Array]:
    """The same in float64."""
    memory = reference.execute(built.graph, built.stored)
    return [memory.value(tensor) for tensor in outputs(built)]


def _first_problem(case: Case, built: Built, got: list[Array], wanted: list[Array]) -> str:
    for tensor, ours, theirs in zip(outputs(built), got, wanted, strict=True):
        if theirs.shape != tensor.ne[::-1]:
            return f"ggml gives sizes {theirs.shape[::-1]}, we give {tensor.ne}"
        with np.errstate(all="ignore"):  # what ggml leaves unwritten may be anything
            found = problem(case, built, ours.reshape(tensor.shape), theirs.reshape(tensor.shape))
        if found:
            return found
    return ""


def _worst(case: Case, got: list[Array], wanted: list[Array]) -> float:
    """The largest error of the results; indices of equal elements are as good as each other."""
    if case.op in PICKS:
        return 0.0
    return max(error(ours, theirs) for ours, theirs in zip(got, wanted, strict=True))


def limit(case: Case) -> float:
    """The bound of the normalised mean square error for a case."""
    if case.op in PRODUCTS:
        types = {arg.dtype for arg in case.args if arg is not None and not arg.dtype.is_integer}
        return STRICT if types == {tp.F32} else NARROW
    return LIMITS.get(case.op, STRICT)


def error(got: Array, wanted: Array) -> float:
    """Normalised mean square error of what is finite in both."""
    finite = np.isfinite(got) & np.isfinite(wanted)
    return normalised_error(np.where(finite, got, 0), np.where(finite, wanted, 0))


def problem(case: Case, built: Built, got: Array, wanted: Array) -> str:
    """What tells `got` from the values `wanted` of ggml; empty where nothing does."""
    if case.op == "argmax":
        return _other_maximum(built, got, wanted)
    compare = "near" if case.compare == "product" else case.compare
    judged = replace(case, compare=compare, limit=limit(case), each=False)
    return difference(judged, built, got, wanted)


def _other_maximum(built: Built, got: Array, wanted: Array) -> str:
    """Of equal elements ours is the first, that of ggml the last."""
    x = built.source_values()
    rows = x.reshape(-1, x.shape[-1])
    found, picked = (rows[np.arange(len(rows)), ids.ravel()] for ids in (got, wanted))
    return "" if np.array_equal(found, picked) else f"maxima {found}, of ggml {picked}"


def chosen(cases: Iterable[Case]) -> list[Case]:
    """The first case of each op and types, and others up to `CASES_PER_OP`, spread by their ids."""
    by_op: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_op[case.op].append(case)
    found: list[Case] = []
    for several in by_op.values():
        firsts = {case.types: case for case in reversed(several)}
        kept = {case.id for case in firsts.values()}
        others = sorted((c for c in several if c.id not in kept), key=Case.seed)
        kept.update(case.id for case in others[: max(0, CASES_PER_OP - len(kept))])
        found.extend(case for case in several if case.id in kept)
    return found
