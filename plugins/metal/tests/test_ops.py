"""The first case of some ops in the kit, through the whole backend; emulated."""

from collections.abc import Iterator

import pytest

from tensorplug_emulator import missing
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

OPS = (
    "add",
    "argsort",
    "cpy",
    "flash_attn_ext",
    "get_rows",
    "mul_mat",
    "rms_norm",
    "rope",
    "sum_rows",
)
CASES = {case.op: case for case in reversed(select("smoke", ops=OPS))}


@pytest.fixture(scope="module")
def one_stream() -> Iterator[object]:
    """A stream for all ops, on a machine of its own."""
    from Metal._machine import machine

    from tensorplug_metal.enumeration import devices

    machine.reset()
    (device,) = devices()
    with device, device.open() as stream:
        yield stream
    assert machine.faults == []


@pytest.mark.parametrize("op", OPS)
def test_first_case_is_near_the_reference(one_stream, op):
    outcome = check(CASES[op], one_stream)

    assert (outcome.verdict, outcome.detail) == ("passed", "")
