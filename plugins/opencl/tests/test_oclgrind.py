"""Kernels under oclgrind, which reports races and accesses out of bounds; it is slow.

Its compiler makes calls of `llvm.usub.sat` that its interpreter does not know, and then has no
kernel (INVALID_KERNEL_NAME): optimisation is off. Its mapped memory is less aligned than it says,
and the suites of memory insist on that: only cases of ops run here.
"""

import csv
import io
import subprocess
import sys
import zlib

import pytest

from tensorplug_opencl.facts import WIDE
from tensorplug_testing.tiers import select

PARTS = 8
"""Runs that share out the ops: a process that stops at one costs no more than its part."""
PROGRAM = "from tensorplug.cli import main; main()"
OPS = sorted({case.op for case in select("smoke")})


@pytest.mark.parametrize("wide", ["0", "1"], ids=["groups", "items"])
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_race_for_nothing_and_stay_in_bounds(part, wide, oclgrind):
    environment = {**oclgrind, WIDE: wide}
    ops = [op for op in OPS if zlib.crc32(op.encode()) % PARTS == part]
    chosen = [word for op in ops for word in ("-o", op)]
    command = ["test", "--device", "opencl:0", "--tier", "smoke", "--csv", *chosen]

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    records = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [record["detail"] for record in records if record["verdict"] == "failed"] == []
    assert done.returncode == 0, done.stderr
