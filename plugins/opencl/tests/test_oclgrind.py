"""Kernels under oclgrind, which reports races and accesses out of bounds; it is slow.

Its compiler makes calls of `llvm.usub.sat` that its interpreter does not know, and then has no
kernel (INVALID_KERNEL_NAME): optimisation is off. Its mapped memory is less aligned than it says,
and the suites of memory insist on that: only cases of ops run here.
"""

import csv
import io
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tensorplug.testing.tiers import select
from tensorplug_opencl.drivers import VENDORS
from tensorplug_opencl.facts import WIDE

LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
PARTS = 8
"""Runs that share out the ops: a process that stops at one costs no more than its part."""
PROGRAM = "from tensorplug.cli import main; main()"
OPS = sorted({case.op for case in select("smoke")})

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY.exists(), reason="apt-get install oclgrind"),
]


@pytest.mark.parametrize("wide", ["0", "1"], ids=["groups", "items"])
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_race_for_nothing_and_stay_in_bounds(part, wide, tmp_path):
    (tmp_path / "oclgrind.icd").write_text(f"{LIBRARY}\n")
    log = tmp_path / "oclgrind.log"
    environment = {
        **os.environ,
        VENDORS: str(tmp_path),
        WIDE: wide,
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOG": str(log),
        "TENSORPLUG_CACHE": str(tmp_path),
    }
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
    assert not log.exists() or log.read_text() == ""
