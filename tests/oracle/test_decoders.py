"""Stored blocks of every type, decoded by ggml and by us."""

import numpy as np
import pytest
from oracle.client import Refusal
from oracle.report import Finding

from tensorplug.dtypes import DTYPES
from tensorplug_cpu import reference
from tensorplug_testing.cases.blocks import SCATTERED, random_rows

BLOCKS = [dtype for dtype in DTYPES if dtype.is_block]


def stored(rng, dtype):
    """64 blocks: any bytes with sane scales where that is possible, else encoded values."""
    if dtype in SCATTERED:
        return random_rows(rng, dtype, (64, dtype.block))
    return reference.encode(dtype, rng.uniform(-1, 1, (64, dtype.block)))


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
