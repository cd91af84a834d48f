"""The process around ggml: what it refuses, and what becomes of the tests where it is missing."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracle.client import Refusal

from tensorplug.dtypes import Q8_1
from tensorplug_testing.cases import Arg, Case, build

ADDITION = Case(op="add", args=(Arg((4, 2)), Arg((4, 2))))
ASSERTED = Case(op="norm", args=(Arg((4, 2)),), params={"eps": -1.0})


def test_failed_assertion_of_ggml_is_a_refusal_that_names_it(oracle):
    found = oracle.run(build(ASSERTED))

    assert isinstance(found, Refusal)
    assert found.reason.endswith("GGML_ASSERT(eps >= 0.0f) failed")
    assert "/" not in found.reason


def test_next_question_after_a_failed_assertion_is_answered(oracle):
    built = build(ADDITION)
    oracle.run(build(ASSERTED))

    (found,) = oracle.run(built)

    wanted = sum(built.stored[leaf].astype(np.float64) for leaf in built.graph.leafs)
    assert np.allclose(found.reshape(2, 4), wanted)


def test_fault_of_the_worker_is_no_refusal(oracle):
    with pytest.raises(AssertionError, match="the worker failed"):
        oracle.ask(("run", [{"op": "none"}], [0]))


def test_type_that_ggml_does_not_decode_is_refused(oracle):
    found = oracle.decode(Q8_1, np.zeros((1, Q8_1.size), np.uint8))

    assert found == Refusal("the type has no decoder")


def test_group_without_a_library_fails_and_says_how_to_get_one(tmp_path):
    here = Path(__file__)
    some = str(here.with_name("test_decoders.py"))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "oracle", some],
        cwd=here.parents[2],
        env={**os.environ, "TENSORPLUG_ORACLE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "no ggml library is installed; `pip install ggml-python`" in done.stdout + done.stderr
