"""Stored blocks of every type, decoded and encoded by ggml and by us."""

import numpy as np
import pytest
from oracle.client import Refusal
from oracle.report import Finding

import tensorplug as tp
from tensorplug.testing.cases.blocks import random_rows
from tensorplug_cpu import reference
from tensorplug_cpu.encode import can_encode, encode_rows
from tensorplug_cpu.reference.blocks import ENCODED

pytestmark = pytest.mark.oracle

BLOCKS = [dtype for dtype in tp.DTYPES if dtype.is_block]


def stored(rng, dtype):
    """64 blocks: encoded where the type has an encoder, else any bytes with sane scales."""
    if dtype in ENCODED:
        return reference.encode(dtype, rng.uniform(-1, 1, (64, dtype.block)))
    return random_rows(rng, dtype, (64, dtype.block))


def decoded(dtype, oracle):
    """A finding about 64 random blocks."""
    rows = stored(np.random.default_rng(dtype.id), dtype)
    theirs = oracle.decode(dtype, rows)
    if isinstance(theirs, Refusal):
        return Finding("decode", (dtype.name,), "refused", theirs.reason)
    ours = reference.decode(dtype, rows).astype(np.float32)
    wrong = int(np.sum(ours.ravel().view(np.uint32) != theirs.view(np.uint32)))
    detail = f"{wrong} of {ours.size} values differ" if wrong else ""
    return Finding("decode", (dtype.name,), "differs" if wrong else "same", detail)


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_blocks_decode_to_the_very_values_of_ggml(dtype, oracle, note):
    finding = note(decoded(dtype, oracle))

    assert finding.detail == ""


ALIKE = 0.99
"""Share of blocks that a search must find just as ggml does."""

AS_GOOD = 1.001
"""Bound of our weighted error as a multiple of that of ggml."""

ROWS = np.random.default_rng(1).normal(0, 0.05, (64, 512)).astype(np.float32)
IMPORTANCE = np.random.default_rng(2).uniform(0.1, 4, 512).astype(np.float32)


def encoded(dtype, oracle, importance):
    """A finding about the blocks of `ROWS`."""
    theirs = oracle.encode(dtype, ROWS, importance)
    if isinstance(theirs, Refusal):
        return Finding("encode", (dtype.name,), "refused", theirs.reason)
    ours = np.empty_like(theirs)
    encode_rows(dtype, ROWS, ours, importance)
    same = np.all(ours.reshape(-1, dtype.size) == theirs.reshape(-1, dtype.size), axis=1).mean()
    errors = [_weighted_error(dtype, rows, importance) for rows in (ours, theirs)]
    good = same >= ALIKE and errors[0] <= AS_GOOD * errors[1]
    detail = f"{same:.2%} of the blocks are the same; errors {errors[0]:g} and {errors[1]:g}"
    return Finding(
        "encode",
        (dtype.name,),
        "same" if good else "differs",
        "" if good else detail,
        error=1 - float(same),
    )


def _weighted_error(dtype, rows, importance):
    apart = reference.decode(dtype, rows) - ROWS
    return float(np.sum(apart**2 * (1 if importance is None else importance)))


@pytest.mark.parametrize("dtype", [t for t in BLOCKS if can_encode(t)], ids=str)
@pytest.mark.parametrize("importance", [None, IMPORTANCE], ids=["alike", "weighted"])
def test_values_encode_to_the_blocks_of_ggml(dtype, importance, oracle, note):
    finding = note(encoded(dtype, oracle, importance))

    assert finding.detail == ""
