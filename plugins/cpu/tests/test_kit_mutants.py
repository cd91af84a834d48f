"""The kit's cases at tier `ci` catch sixty-seven planted mistakes, which docs/kit.md lists."""

import re
from pathlib import Path

import pytest

from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.kernels import KERNELS
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select

from .kit_mutants import MUTANTS, Mutant

PAGE = Path(__file__).parents[3] / "docs" / "kit.md"
QUICK = {
    ("upscale", "last element of the last tile not written"),
    ("ssm_conv", "kernel read as if it had no gaps"),
    ("rope", "odd positions 0.001 too high"),
    ("rms_norm", "result of the first run kept"),
    ("cumsum", "whole vectors of 16 written"),
}
"""One of each kind, for every run of the tests."""


@pytest.fixture(scope="module")
def stream():
    with CPUDevice("cpu:0") as device, device.open(threads=1) as backend:
        yield backend


def _marked(mutant: Mutant):
    marks = [] if (mutant.op, mutant.what) in QUICK else [pytest.mark.long]
    return pytest.param(mutant, marks=marks, id=f"{mutant.op}-{mutant.what}".replace(" ", "_"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mutant", [_marked(mutant) for mutant in MUTANTS])
def test_planted_mistake_is_caught_by_a_case_of_its_op(mutant, stream, monkeypatch):
    kernel = KERNELS[mutant.op]
    monkeypatch.setitem(KERNELS, mutant.op, lambda task: mutant.plant(kernel, task))
    # The cases of tails come first: many mistakes appear there only, and all cases take long.
    cases = sorted(select("ci", ops=[mutant.op]), key=lambda case: not case.always)

    outcomes = (check(case, stream) for case in cases)

    assert any(o.verdict == "failed" and "Error: " not in o.detail for o in outcomes)


def test_page_lists_every_mutant_and_cases_that_catch_it():
    rows = re.findall(
        r"^\| ([a-z ]+) \| `(\w+)` \| (.+) \| (\d+) of (\d+) \|$", PAGE.read_text(), re.M
    )

    assert [row[:3] for row in rows] == [(m.kind, m.op, m.what) for m in MUTANTS]
    assert all(0 < int(caught) <= int(cases) for *_, caught, cases in rows)


def test_there_are_sixty_seven_mutants_of_five_kinds():
    assert len({(m.op, m.what) for m in MUTANTS}) == len(MUTANTS) == 67
    assert len({m.kind for m in MUTANTS}) == 5
