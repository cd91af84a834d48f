"""Values of every kind, encoded by ggml and by us, with and without importance.

Searching encoders may choose another block where two are equally good to within rounding: 99 of
100 blocks must be the same in every bit, and the weighted error no more than 1.001 of that of ggml.
"""

import numpy as np
import pytest
from oracle.client import Refusal
from oracle.report import Finding

from tensorplug.blocks.rows import decode_rows
from tensorplug_cpu.encode import PACKAGED, encode_rows
from tensorplug_cpu.encoders import ENCODERS, simple

ROWS, ELEMENTS = 32, 1024
TYPES = sorted(ENCODERS.keys() | PACKAGED, key=lambda t: t.id)
EXACT = simple.ENCODERS.keys() | PACKAGED
"""Types whose blocks follow from their values, at least where nothing is weighted."""

SHAPE = (ROWS, ELEMENTS)
VALUES = {
    "normal": lambda rng: rng.normal(size=SHAPE),
    "heavy-tailed": lambda rng: 0.02 * rng.standard_t(1.5, size=SHAPE),
    "tiny": lambda rng: 1e-6 * rng.normal(size=SHAPE),
    "positive": lambda rng: np.abs(rng.normal(size=SHAPE)),
    "in steps": lambda rng: rng.integers(-8, 9, size=SHAPE) / 4 + 0.0,
    "sparse": lambda rng: np.where(rng.random(SHAPE) < 0.05, rng.normal(size=SHAPE), 0.0),
    "zeros": lambda rng: np.zeros(SHAPE),
    "constant rows": lambda rng: np.broadcast_to(rng.normal(size=(ROWS, 1)), SHAPE),
}
IMPORTANCE = {
    "none": lambda rng: None,
    "random": lambda rng: (rng.chisquare(1, ELEMENTS) + 1e-3).astype(np.float32),
    "even": lambda rng: np.ones(ELEMENTS, np.float32),
}

OTHERWISE = {
    ("iq3_s", "sparse"): "signs of groups that follow a group of zeros are stored in wrong places"
}
"""Where ggml is known to lose more than we do, by type and kind of values, and why."""


def decoded(dtype, raw):
    out = np.empty(SHAPE, np.float32)
    decode_rows(dtype, raw, out)
    return out.astype(np.float64)


NEEDS = {"iq1_s": "recent", "iq1_m": "recent"}
"""Which ggml a type is compared with, where any will not do."""


def compared(oracle, dtype, values, importance, otherwise=""):
    """A finding about the blocks of `values`; its error is the share of blocks that differ.

    Blocks may differ for the reason `otherwise`, as long as we lose less.
    """
    theirs = oracle.encode(dtype, values, importance)
    if isinstance(theirs, Refusal):
        return Finding("encode", (dtype.name,), "refused", theirs.reason)
    ours = np.empty_like(theirs)
    encode_rows(dtype, values, ours, importance)
    blocks = [raw.reshape(-1, dtype.size) for raw in (ours, theirs)]
    same = float(np.mean((blocks[0] == blocks[1]).all(axis=1)))
    got, wanted = decoded(dtype, ours), decoded(dtype, theirs)
    weights = 1.0 if importance is None else importance
    our_error, their_error = (np.sum(weights * (found - values) ** 2) for found in (got, wanted))
    exact = dtype in EXACT and (importance is None or dtype not in ENCODERS)
    good = same >= (1 if exact else 0.99) and our_error <= 1.001 * their_error
    detail = f"{same:.2%} of blocks are the same, errors {our_error:.6g} and {their_error:.6g}"
    if otherwise and not good and our_error < their_error:
        return Finding("encode", (dtype.name,), "otherwise", otherwise)
    verdict = "same" if good else "differs"
    return Finding("encode", (dtype.name,), verdict, "" if good else detail, 1 - same)


@pytest.mark.parametrize("weights", IMPORTANCE)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_values_are_encoded_as_by_ggml(dtype, kind, weights, request, note):
    ggml = request.getfixturevalue(NEEDS.get(dtype.name, "oracle"))
    rng = np.random.default_rng(dtype.id)
    values = np.ascontiguousarray(VALUES[kind](rng), np.float32)

    known = OTHERWISE.get((dtype.name, kind), "")
    finding = compared(ggml, dtype, values, IMPORTANCE[weights](rng), known)

    assert note(finding).detail == ""
