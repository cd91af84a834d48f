"""Every case of an op with native kernels against the reference, at each instruction-set level."""

from dataclasses import replace

import pytest

from tensorplug_native.rules import RULES
from tensorplug_testing.cases import LARGE, SMALL
from tensorplug_testing.cases.laid import lay

CASES = [
    replace(case, limit=min(case.limit, 1e-7)) for case in (*SMALL, *LARGE) if case.op in RULES
]
"""Sums are in f32 whatever the weights are, so even products keep the default limit."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_compiled_kernels_give_what_the_reference_gives(case, device, backend):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    backend.compute(laid.bound)

    assert laid.problem() == ""
